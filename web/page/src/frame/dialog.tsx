/** Modal dialogs, one at a time. Escape closes a dialog, and the focus returns to its previous element. */

import { signal } from "@preact/signals";
import { type ComponentChildren, Fragment } from "preact";
import { useId, useLayoutEffect, useRef } from "preact/hooks";

import { Icon } from "./icon.js";
import { Toasts } from "./toasts.js";

const shown = signal<{ readonly key: number; render(): ComponentChildren } | undefined>(undefined);
let count = 0;

/** Show a dialog in place of any other. `render` returns a `Dialog`. */
export function openDialog(render: () => ComponentChildren): void {
  shown.value = { key: ++count, render };
}

export function closeDialog(): void {
  shown.value = undefined;
}

/** The place of dialogs and toasts. Toasts are inside an open dialog, because everything else is inert. */
export function OverPage() {
  const dialog = shown.value;
  return dialog ? <Fragment key={dialog.key}>{dialog.render()}</Fragment> : <Toasts />;
}

interface DialogProps {
  readonly title: string;
  /** A class for its style. */
  readonly kind?: string;
  /** Its title is for screen readers only. */
  readonly isBare?: boolean;
  readonly children: ComponentChildren;
}

export function Dialog({ title, kind = "", isBare = false, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  const own = useRef(shown.peek());
  // Browsers report a closed dialog asynchronously, when another may already be shown.
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
        // The click target is the dialog itself only for clicks on the backdrop.
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
  /** The consequence of the action. */
  readonly text: string;
  /** The label of the button. */
  readonly act: string;
  readonly run: () => void;
}

/** Ask for confirmation of an action that cannot be undone. */
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
