/** Something that is shown when it is asked for, and not made before. */

import { type ComponentChildren } from "preact";
import { useState } from "preact/hooks";

export interface FoldedProps {
  readonly summary: ComponentChildren;
  readonly class?: string;
  readonly open?: boolean;
  /** Told when the reader opens or closes it. */
  readonly onToggle?: (open: boolean) => void;
  readonly children: () => ComponentChildren;
}

export function Folded({ summary, class: name = "", open, onToggle, children }: FoldedProps) {
  const [chosen, choose] = useState<boolean>();
  const isOpen = (onToggle === undefined ? chosen : undefined) ?? open ?? false;
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
