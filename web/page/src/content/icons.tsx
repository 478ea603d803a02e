/** Icons of the kinds of tool calls and of states. They are decorative: the text next to them has the same meaning. */

import { type ComponentChildren } from "preact";

function Icon({ children, class: name = "" }: { readonly children: ComponentChildren; readonly class?: string }) {
  return (
    <svg
      class={`icon ${name}`}
      viewBox="0 0 16 16"
      width="16"
      height="16"
      fill="none"
      stroke="currentColor"
      stroke-width="1.4"
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      {children}
    </svg>
  );
}

/** SVG paths in a 16 by 16 box. */
const KINDS: Readonly<Record<string, string>> = {
  read: "M8 4.2C6.6 3.2 4.5 2.8 2 2.8v9.6c2.5 0 4.6.4 6 1.4 1.4-1 3.5-1.4 6-1.4V2.8c-2.5 0-4.6.4-6 1.4zm0 0v9.6",
  edit: "M10.6 2.6l2.8 2.8-8 8-3.4.6.6-3.4zM9 4.2L11.8 7",
  delete: "M2.5 4.2h11M6 4V2.4h4V4M4 4.4l.7 9.2h6.6l.7-9.2M6.7 7v4M9.3 7v4",
  move: "M2.5 8h11M9.5 4l4 4-4 4",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zm3.6-1.4L14 14",
  execute: "M2 3h12v10H2zM4.5 6l2 2-2 2M8.5 10h3",
  think: "M5.8 11.5v-1.2A4.3 4.3 0 1 1 10.2 10.3v1.2zM6.3 13.8h3.4",
  fetch:
    "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM2 8h12M8 2c2 1.8 2.6 3.6 2.6 6S10 12.2 8 14c-2-1.8-2.6-3.6-2.6-6S6 3.8 8 2z",
  switch_mode: "M3 5h9.5M10 2.5L12.5 5 10 7.5M13 11H3.5M6 8.5L3.5 11 6 13.5",
  other: "M3.2 8h.01M8 8h.01M12.8 8h.01M2 4h12v8H2z",
};

export function KindIcon({ kind }: { readonly kind: string }) {
  return (
    <Icon class="kind">
      <path d={KINDS[kind] ?? KINDS["other"]} />
    </Icon>
  );
}

const MARKS: Readonly<Record<string, string>> = {
  completed: "M3 8.5l3.2 3.2L13 4.8",
  failed: "M4 4l8 8M12 4l-8 8",
  cancelled: "M3.5 8h9",
  "left open": "M8 3.5V9M8 12v.2",
  pending: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12z",
  paused: "M5.5 4v8M10.5 4v8",
};

/** The icon of a state; a running one rotates. */
export function StateIcon({ state }: { readonly state: string }) {
  if (state === "running") return <span class="spinner" aria-hidden="true" />;
  return (
    <Icon class="state">
      <path d={MARKS[state] ?? MARKS["pending"]} />
    </Icon>
  );
}
