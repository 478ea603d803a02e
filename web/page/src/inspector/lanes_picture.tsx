/** A turn as a picture to scale, as numbers and as a table. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { type Bar, LANES, type LaneName, type Lanes } from "./lanes.js";
import { durationOf, ticksOf } from "./time.js";

const NAMES: Record<LaneName, string> = {
  queue: "Queue wait",
  model: "Model",
  tools: "Tools",
  permission: "Permission",
  cancel: "Cancel",
};
const LABELS = 92;
const BAR = 14;
const LEVEL = 17;
const PAD = 5;
const AXIS = 22;
const MOST_LEVELS = 8;
/** Room for a tick's label. */
const TICK = 76;

interface Placed {
  readonly lane: LaneName;
  readonly bar: Bar;
  readonly x: number;
  readonly y: number;
  readonly width: number;
}

export function LanesPicture({ lanes, onChoose }: { lanes: Lanes; onChoose: (eventId: number) => void }) {
  const frame = useRef<HTMLDivElement>(null);
  const width = useSignal(600);
  /** The bar with the keyboard focus, which is described below. */
  const here = useSignal(0);
  const told = useSignal<Placed | undefined>(undefined);
  useEffect(() => {
    const box = frame.current!;
    // The size changes once more when it is unmounted.
    const watch = new ResizeObserver(() => {
      if (box.isConnected) width.value = box.clientWidth;
    });
    watch.observe(box);
    return () => watch.disconnect();
  }, []);

  const total = Math.max(lanes.totalMs, 1);
  const room = Math.max(width.value - LABELS - 12, 60);
  const x = (at: number) => LABELS + ((at - lanes.from) / total) * room;
  const heads: { name: LaneName; y: number; height: number }[] = [];
  const placed: Placed[] = [];
  let y = 4;
  for (const name of LANES) {
    const bars = lanes.lanes[name];
    const levels = Math.min(Math.max(1, ...bars.map((each) => each.level + 1)), MOST_LEVELS);
    heads.push({ name, y, height: levels * LEVEL + PAD });
    for (const bar of bars) {
      const top = y + (bar.level % MOST_LEVELS) * LEVEL + (PAD + LEVEL - BAR) / 2;
      placed.push({ lane: name, bar, x: x(bar.from), y: top, width: Math.max(x(bar.to) - x(bar.from), 2) });
    }
    y += levels * LEVEL + PAD;
  }
  const height = y + AXIS;
  const ticks = ticksOf(total, Math.floor(room / TICK));
  const at = Math.min(here.value, placed.length - 1);

  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step !== undefined) {
      here.value = Math.min(Math.max(at + step, 0), placed.length - 1);
      frame.current!.querySelectorAll<SVGElement>(".lane-bar")[here.value]?.focus();
    } else if (event.key === "Enter" && placed[at]) {
      onChoose(placed[at].bar.eventId);
    } else return;
    event.preventDefault();
  };

  return (
    <figure class="inspector-lanes">
      <div ref={frame} class="lanes-box">
        <svg width={width.value} height={height} role="group" aria-label="The turn, to scale" onKeyDown={onKeyDown}>
          {ticks.map((each) => (
            <g key={each} class="lane-tick" aria-hidden="true">
              <line x1={x(lanes.from + each)} x2={x(lanes.from + each)} y1="0" y2={y + 4} />
              <text x={x(lanes.from + each)} y={height - 6} text-anchor={anchorOf(each / total)}>
                {each === 0 ? "0" : durationOf(each)}
              </text>
            </g>
          ))}
          {heads.map((each) => (
            <g key={each.name} class="lane-name" aria-hidden="true">
              <line x1="0" x2={width.value} y1={each.y + each.height} y2={each.y + each.height} />
              <text x="0" y={each.y + PAD + 11}>
                {NAMES[each.name]}
              </text>
            </g>
          ))}
          {placed.map((each, index) => (
            <g
              key={`${each.lane} ${each.bar.eventId} ${each.bar.from}`}
              class={`lane-bar lane-${each.lane} ${each.bar.end}`}
              role="button"
              aria-label={wordsOf(each.bar, lanes)}
              tabIndex={index === at ? 0 : -1}
              onFocus={() => {
                here.value = index;
                told.value = each;
              }}
              onMouseEnter={() => (told.value = each)}
              onMouseLeave={() => (told.value = undefined)}
              onBlur={() => (told.value = undefined)}
              onClick={() => onChoose(each.bar.eventId)}
            >
              <title>{wordsOf(each.bar, lanes)}</title>
              <rect x={each.x} y={each.y} width={each.width} height={BAR} rx={Math.min(3, each.width / 2)} />
            </g>
          ))}
          {placed.map(
            (each) =>
              // Next to the bars, not inside: a truncated label inside a button would change its name.
              each.lane === "tools" &&
              each.width > 48 && (
                <text class={`lane-words ${each.bar.end}`} x={each.x + 5} y={each.y + 11} aria-hidden="true">
                  {fitting(each.bar.name, each.width - 8)}
                </text>
              ),
          )}
        </svg>
      </div>
      <p class="told small soft" aria-hidden="true">
        {told.value ? wordsOf(told.value.bar, lanes) : "Point at a bar for its length."}
      </p>
      <Numbers lanes={lanes} />
      <details class="small">
        <summary>As a table</summary>
        <LanesTable lanes={lanes} />
      </details>
    </figure>
  );
}

/** Otherwise the first and the last label would be cut off. */
function anchorOf(share: number): "start" | "middle" | "end" {
  if (share === 0) return "start";
  return share > 0.96 ? "end" : "middle";
}

function wordsOf(bar: Bar, lanes: Lanes): string {
  const open = bar.end === "open" ? (lanes.ended ? ", not ended" : " so far") : "";
  const failed = bar.end === "failed" ? ", failed" : "";
  const from = durationOf(bar.from - lanes.from);
  return `${bar.name}: ${durationOf(bar.to - bar.from)}${open}${failed}, from ${from} to ${durationOf(bar.to - lanes.from)}`;
}

/** Return as much of a name as fits: letters of this size are about 6.4 wide. */
function fitting(name: string, width: number): string {
  const most = Math.floor(width / 6.4);
  return name.length <= most ? name : `${name.slice(0, Math.max(most - 1, 0))}…`;
}

function Numbers({ lanes }: { lanes: Lanes }) {
  const numbers: [string, string][] = [
    [lanes.ended ? "Total" : "So far", durationOf(lanes.totalMs)],
    ["First update", lanes.firstUpdateMs === undefined ? "–" : durationOf(lanes.firstUpdateMs)],
    ["Queue wait", durationOf(lanes.queueMs)],
    [lanes.toolCount === 1 ? "1 tool call" : `${lanes.toolCount} tool calls`, durationOf(lanes.toolsMs)],
    ["Permission wait", durationOf(lanes.permissionMs)],
  ];
  return (
    <dl class="inspector-numbers">
      {numbers.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function LanesTable({ lanes }: { lanes: Lanes }) {
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">Lane</th>
          <th scope="col">What</th>
          <th scope="col">From</th>
          <th scope="col">Length</th>
          <th scope="col">End</th>
        </tr>
      </thead>
      <tbody>
        {LANES.flatMap((name) =>
          lanes.lanes[name].map((bar) => (
            <tr key={`${name} ${bar.eventId} ${bar.from}`}>
              <td>{NAMES[name]}</td>
              <td>{bar.name}</td>
              <td>{durationOf(bar.from - lanes.from)}</td>
              <td>{durationOf(bar.to - bar.from)}</td>
              <td>{bar.end}</td>
            </tr>
          )),
        )}
      </tbody>
    </table>
  );
}
