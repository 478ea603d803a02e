/** A manual clock and a scripted daemon for the other tests. */

import { type Client, type ConnectOptions, connect } from "../src/index.js";
import type { AnyEvent, Batch, Clock, EventSourceOf, Position, Watch } from "../src/index.js";

/** Let all pending microtasks run. */
export async function settled(): Promise<void> {
  for (let round = 0; round < 20; round++) await new Promise((resolve) => setImmediate(resolve));
}

export class ManualClock implements Clock {
  #now = 0;
  readonly #timers = new Set<{ at: number; act: () => void }>();

  now(): number {
    return this.#now;
  }

  after(ms: number, act: () => void): () => void {
    const timer = { at: this.#now + ms, act };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  /** All that chance gives. */
  chance(): number {
    return 0.5;
  }

  async advance(ms: number): Promise<void> {
    const end = this.#now + ms;
    for (;;) {
      await settled();
      const due = [...this.#timers].filter((each) => each.at <= end).sort((one, other) => one.at - other.at)[0];
      if (!due) break;
      this.#timers.delete(due);
      this.#now = Math.max(this.#now, due.at);
      due.act();
    }
    this.#now = end;
  }
}

/** One request that the daemon got. */
export class Got {
  constructor(
    readonly method: string,
    /** With the query. */
    readonly path: string,
    readonly headers: Headers,
    readonly body: unknown,
  ) {}

  /** Method and path, such as `POST /session/s/prompt`. */
  get name(): string {
    return `${this.method} ${this.path.split("?")[0]}`;
  }
}

/** A body that lasts as long as the test wants. */
export class FakeStream {
  #controller!: ReadableStreamDefaultController<Uint8Array>;
  isOver = false;
  readonly response: Response;

  constructor(headers: Record<string, string> = {}) {
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.#controller = controller;
      },
      cancel: () => {
        this.isOver = true;
      },
    });
    this.response = new Response(body, { headers: { "content-type": "text/event-stream", ...headers } });
  }

  write(text: string): void {
    this.#controller.enqueue(new TextEncoder().encode(text));
  }

  /** Frames of these events. */
  tell(...events: object[]): void {
    this.write(events.map((each) => frame(each as { id?: number; type: string })).join(""));
  }

  /** As a connection that is reset. */
  cut(): void {
    if (!this.isOver) this.#controller.error(new TypeError("terminated"));
    this.isOver = true;
  }

  /** As a server that ends it. */
  end(): void {
    if (!this.isOver) this.#controller.close();
    this.isOver = true;
  }
}

export function frame(event: { id?: number; type: string }, cursor?: string): string {
  const id = cursor ?? event.id;
  return `${id === undefined ? "" : `id: ${id}\n`}event: ${event.type}\ndata: ${JSON.stringify({ v: 1, ...event })}\n\n`;
}

type Rule = (got: Got) => Response | Promise<Response>;

export function answer(body: unknown, status = 200, headers: Record<string, string> = {}): Response {
  return new Response(status === 204 ? null : JSON.stringify(body), { status, headers });
}

export const CAPABILITIES = {
  version: "0",
  features: [],
  workspaceCwd: "/",
  workspaces: [],
  policy: {},
  agent: {},
};

export class FakeDaemon {
  readonly clock = new ManualClock();
  readonly got: Got[] = [];
  readonly #rules = new Map<string, Rule>();

  constructor() {
    this.on("GET /capabilities", () => answer(CAPABILITIES));
    this.on("GET /session/s", () => answer({ sessionId: "s", lastEventId: 0, eventEpoch: "e", isClosed: false }));
  }

  on(name: string, rule: Rule): void {
    this.#rules.set(name, rule);
  }

  /** What each connection to the stream of `name` is given, one after the other; then it refuses them. */
  streams(
    name = "GET /session/s/events",
    headers: Record<string, string> = { "turnwire-epoch": "e" },
  ): FakeStream[] {
    const opened: FakeStream[] = [];
    this.on(name, () => {
      const stream = new FakeStream(headers);
      opened.push(stream);
      return stream.response;
    });
    return opened;
  }

  named(name: string): Got[] {
    return this.got.filter((each) => each.name === name);
  }

  readonly fetch = async (url: unknown, init: RequestInit = {}): Promise<Response> => {
    const { pathname, search } = new URL(String(url));
    const body: unknown = typeof init.body === "string" ? JSON.parse(init.body) : undefined;
    const got = new Got(init.method ?? "GET", pathname + search, new Headers(init.headers), body);
    this.got.push(got);
    const rule = this.#rules.get(got.name);
    if (!rule) return answer({ code: "not_found", detail: `nobody told what to say to ${got.name}` }, 404);
    const gone = new Promise<never>((_, reject) => {
      init.signal?.addEventListener("abort", () => reject(new DOMException("gone", "AbortError")));
    });
    return Promise.race([Promise.resolve(rule(got)), gone]);
  };

  connect(options: ConnectOptions = {}): Promise<Client> {
    return connect("http://daemon.test", { fetch: this.fetch as typeof fetch, clock: this.clock, ...options });
  }
}

/** A source of events that the test fills. */
export class FakeSource implements EventSourceOf {
  #head = 0;
  readonly #told: AnyEvent[] = [];
  readonly #waiting = new Set<() => void>();
  isOver = false;

  /** These events, numbered, in one batch. */
  tell(...events: { type: string; data?: object; promptId?: string }[]): void {
    for (const { type, data, promptId } of events) {
      const known = { sessionId: "s", ...(promptId === undefined ? {} : { promptId }), ...data };
      const event = { id: ++this.#head, v: 1, type, data: known, ...(promptId === undefined ? {} : { promptId }) };
      this.#told.push(event as AnyEvent);
    }
    this.#wake();
  }

  /** Something without a number. */
  interject(event: object): void {
    this.#told.push({ v: 1, ...event } as AnyEvent);
    this.#wake();
  }

  end(): void {
    this.isOver = true;
    this.#wake();
  }

  #wake(): void {
    for (const each of this.#waiting) each();
  }

  async *session(_: string, after: Position, watch: Watch): AsyncGenerator<Batch<Position>> {
    let at = this.#told.findIndex((each) => (each.id ?? 0) > after.id);
    if (at < 0) at = this.#told.length;
    while (!watch.signal.aborted) {
      if (at < this.#told.length) {
        const events = this.#told.slice(at);
        at = this.#told.length;
        yield { events, place: { id: this.#head, epoch: "e" } };
      } else if (this.isOver) return;
      else {
        await new Promise<void>((resolve) => {
          const go = () => {
            this.#waiting.delete(go);
            watch.signal.removeEventListener("abort", go);
            resolve();
          };
          this.#waiting.add(go);
          watch.signal.addEventListener("abort", go);
        });
      }
    }
  }

  many(): AsyncIterable<Batch<string>> {
    throw new Error("nobody asks for many here");
  }
}

/** A turn's events. */
export const turn = {
  accepted: (promptId: string, key?: string) => ({ type: "prompt_accepted", promptId, data: { key } }),
  says: (promptId: string, text: string, more: object = {}) => ({
    type: "session_update",
    promptId,
    data: { update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text }, ...more } },
  }),
  ends: (promptId: string, stopReason = "end_turn") => ({
    type: "turn_complete",
    promptId,
    data: { stopReason, ending: "response" },
  }),
  fails: (promptId: string) => ({
    type: "turn_error",
    promptId,
    data: { code: "agent_exited", message: "it went", exitCode: 3 },
  }),
};
