/** The page's icons: one line in a 16 by 16 box. They are decorative: the text next to them has the same meaning. */

const LINES = {
  attach: "m12.5 7.5-5 5a3 3 0 0 1-4.2-4.2l5.5-5.5a2 2 0 0 1 2.8 2.8L6.2 11a1 1 0 0 1-1.4-1.4l4.7-4.7",
  archive: "M2.5 3.5h11v3h-11zM3.5 6.5v6h9v-6M6.5 9h3",
  back: "M10 3 5 8l5 5",
  bell: "M4.5 7a3.5 3.5 0 0 1 7 0c0 3 1.5 4 1.5 4H3s1.5-1 1.5-4M6.8 13.2a1.4 1.4 0 0 0 2.4 0",
  check: "m3.5 8.5 3 3 6-7",
  close: "m4 4 8 8M12 4l-8 8",
  copy: "M5.5 5.5h7v7h-7zM10.5 5.5v-2h-7v7h2",
  dots: "M8 3.5v.01M8 8v.01M8 12.5v.01",
  down: "M8 3v10M4 9l4 4 4-4",
  find: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9M10.3 10.3 13.5 13.5",
  folder: "M2.5 12.5v-9h4l1.5 2h5.5v7z",
  inbox: "M2.5 9.5 4.5 3h7l2 6.5v3.5h-11zM2.5 9.5h3.2c.2 1.3 1.1 2 2.3 2s2.1-.7 2.3-2h3.2",
  inspector: "M1.5 8.5h3l2-5 3 9 2-4h3",
  keys: "M1.5 4.5h13v7h-13zM4 7v.01M6.7 7v.01M9.3 7v.01M12 7v.01M5 9.5h6",
  pencil: "m3 13 .6-2.8 7-7 2.2 2.2-7 7z",
  plus: "M8 3v10M3 8h10",
  settings: "M2.5 4.5h6M11.5 4.5h2M2.5 11.5h2M7.5 11.5h6M10 3v3M6 10v3",
  share: "M8 9.5v-7M5 5l3-3 3 3M3.5 8v5.5h9V8",
  side: "M2.5 3h11v10h-11zM6.5 3v10",
  up: "M8 13V3M4 7l4-4 4 4",
  stop: "M4.5 4.5h7v7h-7z",
} as const;

export type IconName = keyof typeof LINES;

export function Icon({ name }: { readonly name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={LINES[name]} />
    </svg>
  );
}
