/** Dialogs: one at a time, over everything. Escape closes, and the focus goes back to where it was. */

import { signal } from "@preact/signals";
import { type ComponentChildren, Fragment } from "preact";
import { useId, useLayoutEffect, useRef } from "preact/hooks";

import { Icon } from "./icon.js";
import { Toasts } from "./toasts.js";

const shown = signal<{ readonly key: number; render(): ComponentChildren } | undefined>(undefined);
let count = 0;

/** Show a dialog instead of any other. `render` gives a `Dialog`. */
export function openDialog(render: () => ComponentChildren): void {
  shown.value = { key: ++count, render };
}

export function closeDialog(): void {
  shown.value = undefined;
}

/** Where dialogs are in the page, and toasts: those are inside of a dialog while there is one, for all else is inert. */
export function OverPage() {
  const dialog = shown.value;
  return dialog ? <Fragment key={dialog.key}>{dialog.render()}</Fragment> : <Toasts />;
}

interface DialogProps {
  readonly title: string;
  /** A name for its own looks. */
  readonly kind?: string;
  /** Its title is for screen readers only. */
  readonly isBare?: boolean;
  readonly children: ComponentChildren;
}

export function Dialog({ title, kind = "", isBare = false, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  const own = useRef(shown.peek());
  // A browser tells that a dialog was closed when it has time: another may be shown by then.
  const closed = () => {
    if (shown.peek() === own.current) closeDialog();
  };
  useLayoutEffect(() => {
    const before = document.activeElement;
    const element = dialog.current!;
    element.showModal();
    element.querySelector<HTMLElement>("[data-first]")?.focus();
    return () => {
      element.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      class={`dialog ${kind}`}
      aria-labelledby={id}
      onClose={closed}
      onClick={(event) => {
        // The dialog itself is hit only where nothing of it is: behind it.
        if (event.target === dialog.current) closeDialog();
      }}
    >
      <div class="dialog-body">
        <div class={isBare ? "unseen" : "dialog-head"}>
          <h2 id={id}>{title}</h2>
          {!isBare && (
            <button type="button" class="icon-button" aria-label="Close" onClick={closeDialog}>
              <Icon name="close" />
            </button>
          )}
        </div>
        {children}
      </div>
      <Toasts />
    </dialog>
  );
}

interface ConfirmProps {
  readonly title: string;
  /** What will happen. */
  readonly text: string;
  /** The word on the button that does it. */
  readonly act: string;
  readonly run: () => void;
}

/** Ask before something that cannot be taken back. */
export function confirmFirst({ title, text, act, run }: ConfirmProps): void {
  openDialog(() => (
    <Dialog title={title} kind="confirm">
      <p>{text}</p>
      <div class="dialog-acts">
        <button type="button" class="button" data-first onClick={closeDialog}>
          Cancel
        </button>
        <button
          type="button"
          class="button danger"
          onClick={() => {
            closeDialog();
            run();
          }}
        >
          {act}
        </button>
      </div>
    </Dialog>
  ));
}
