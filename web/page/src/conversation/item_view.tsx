import type { ReadonlySignal } from "@preact/signals";
import type { Item } from "@turnwire/client/view";
export interface Shown { daemon: unknown; state: unknown; comments: unknown; isSideBySide: unknown }
export function ItemView({ item }: { item: ReadonlySignal<Item>; shown: Shown }) {
  const it = item.value;
  if (it.item === "message") return <div class={`message ${it.role}`}><strong>{it.role}</strong> <span style={{ whiteSpace: "pre-wrap" }}>{(it.content ?? []).map((b) => (b.type === "text" ? b.text : `[${String(b.type)}]`)).join("")}</span></div>;
  return <pre class="small">{JSON.stringify(it).slice(0, 300)}</pre>;
}
