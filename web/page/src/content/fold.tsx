/** Content that is rendered only when it is unfolded. */

import { type ComponentChildren } from "preact";
import { useState } from "preact/hooks";

export interface FoldedProps {
  readonly summary: ComponentChildren;
  readonly class?: string;
  /** Whether it is open, if the caller stores that. */
  readonly open?: boolean | undefined;
  /** Called when the reader opens or closes it. */
  readonly onToggle?: ((open: boolean) => void) | undefined;
  /** Whether it is open at first. */
  readonly initial?: boolean;
  readonly children: () => ComponentChildren;
}

export function Folded({ summary, class: name = "", open, onToggle, initial = false, children }: FoldedProps) {
  const [chosen, choose] = useState<boolean>();
  const isOpen = open ?? chosen ?? initial;
  const toggle = (event: Event): void => {
    event.preventDefault();
    choose(!isOpen);
    onToggle?.(!isOpen);
  };
  return (
    <details class={`fold ${name}`} open={isOpen}>
      <summary onClick={toggle}>{summary}</summary>
      {isOpen && <div class="fold-body">{children()}</div>}
    </details>
  );
}
