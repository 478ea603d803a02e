/**
 * Requests to a daemon, route by route. Nothing here follows events. `Client` and `Session` add events to these calls;
 * a program that follows events in its own way needs no more than this.
 */

import type { ConfigOption, Content } from "./acp.js";
import { type Clock, systemClock } from "./clock.js";
import { LocalProtocolError, SessionExists, UnknownClient } from "./errors.js";
import { type Asked, Http, defined, segment } from "./http.js";
import { randomId } from "./ids.js";
import type {
  AnswerReceipt,
  Capabilities,
  ChildTranscript,
  HostedAgent,
  LogPart,
  NewSession,
  NewShare,
  PromptReceipt,
  Queue,
  SessionEntry,
  SessionFilter,
  SessionOpened,
  SessionPage,
  SessionSnapshot,
  Share,
  Transcript,
  TurnStatus,
  WhenBusy,
} from "./rest.js";
import type { Shape } from "./source.js";

/** How to reach a daemon. */
export interface CallOptions {
  /** Without one, a browser sends the cookie of its login, which needs `pageKey`. */
  readonly token?: string;
  /** `Turnwire-Page-Key` of the response that set the cookie. */
  readonly pageKey?: string | undefined;
  /** A replacement for the platform's `fetch`. */
  readonly fetch?: typeof fetch;
  /** The dialect of agent updates; `"1"` by default. */
  readonly acp?: Shape;
  /** How long a request is retried: 10 seconds. */
  readonly requestRetryMs?: number;
  /** How long a stream may be silent before it is reopened: 45 seconds, three heartbeats of the daemon. */
  readonly silenceMs?: number;
  /** Time and randomness, for tests. */
  readonly clock?: Clock;
}

/** Which items of a transcript, and in which dialect. */
export interface PageWanted {
  readonly limit?: number;
  /** `before` of a page. */
  readonly before?: number;
  readonly acp?: Shape;
}

const PAGE = 100;

/** Connect to a daemon for requests. Throws `DaemonUnreachable`, `Unauthenticated`. */
export async function reach(url: string | URL, options: CallOptions = {}): Promise<DaemonCalls> {
  const [http, capabilities] = await answering(url, options);
  return new DaemonCalls(http, options.acp ?? "1", capabilities);
}

/** @internal Return the connection to a daemon that answers, and its capabilities. */
export async function answering(url: string | URL, options: CallOptions): Promise<[Http, Capabilities]> {
  const http = new Http(url, {
    token: options.token,
    pageKey: options.pageKey,
    // Called as a plain function: a browser's `fetch` rejects being called as a method of another object.
    fetch: options.fetch ?? ((input, init) => fetch(input, init)),
    clock: options.clock ?? systemClock,
    requestRetryMs: options.requestRetryMs ?? 10_000,
    silenceMs: options.silenceMs ?? 45_000,
  });
  const asked = { repeatable: true, impatient: true };
  return [http, await http.ask<Capabilities>("GET", "/capabilities", undefined, asked)];
}

export class DaemonCalls {
  /** @internal */
  constructor(
    protected readonly http: Http,
    protected readonly shape: Shape,
    /** The daemon's capabilities. */
    readonly capabilities: Capabilities,
  ) {}

  /** Return the requests of a session. */
  session(sessionId: string): SessionCalls {
    return new SessionCalls(this.http, this.shape, sessionId, undefined);
  }

  /** Create a session. */
  async open(wanted: NewSession = {}): Promise<SessionOpened> {
    // The client chooses the id, so that a retry after a lost response cannot create two sessions.
    const sessionId = `s_${randomId()}`;
    try {
      return await this.http.ask<SessionOpened>(
        "POST",
        `/session?acp=${this.shape}`,
        { ...wanted, sessionId },
        { repeatable: true },
      );
    } catch (error) {
      if (!(error instanceof SessionExists)) throw error;
      return this.snapshot(sessionId);
    }
  }

  /** Return all sessions that the credential may see. */
  async sessions(filter: SessionFilter = {}): Promise<SessionEntry[]> {
    const found: SessionEntry[] = [];
    let cursor: string | undefined;
    do {
      const query = new URLSearchParams({
        size: String(PAGE),
        ...filter,
        ...(cursor === undefined ? {} : { cursor }),
      });
      const page = await this.request<SessionPage>("GET", `/session?${query}`);
      found.push(...page.sessions);
      cursor = page.nextCursor;
    } while (cursor);
    return found;
  }

  /** Return the state of a session, with its queue and open requests. */
  snapshot(sessionId: string, { acp = this.shape }: { readonly acp?: Shape } = {}): Promise<SessionSnapshot> {
    return this.request("GET", `/session/${segment(sessionId)}?acp=${acp}`);
  }

  /** Return the transcript: all of it, or with `limit` the newest items, or those before a place. */
  transcript(sessionId: string, wanted: PageWanted = {}): Promise<Transcript> {
    return this.request("GET", `/session/${segment(sessionId)}/transcript?${this.#query(wanted)}`);
  }

  /** Return the transcript of a child session. */
  childTranscript(sessionId: string, childId: string, wanted: PageWanted = {}): Promise<ChildTranscript> {
    const path = `/session/${segment(sessionId)}/children/${segment(childId)}/transcript`;
    return this.request("GET", `${path}?${this.#query(wanted)}`);
  }

  /** Return a part of a session's log: the events after `after`. */
  log(
    sessionId: string,
    wanted: { readonly after?: number; readonly limit?: number; readonly acp?: Shape } = {},
  ): Promise<LogPart> {
    return this.request("GET", `/session/${segment(sessionId)}/log?${this.#query(wanted)}`);
  }

  /** Archive a session: lists hide it until it is prompted or unarchived. */
  archive(sessionId: string): Promise<void> {
    return this.request("POST", `/session/${segment(sessionId)}/archive`, undefined, { repeatable: true });
  }

  unarchive(sessionId: string): Promise<void> {
    return this.request("POST", `/session/${segment(sessionId)}/unarchive`, undefined, { repeatable: true });
  }

  /** Create a link by which anyone can watch the session, for a day or the given time. */
  share(sessionId: string, wanted: { readonly expiresInS?: number } = {}): Promise<NewShare> {
    return this.request("POST", `/session/${segment(sessionId)}/share`, wanted);
  }

  /** Return the active share links. */
  async shares(sessionId: string): Promise<readonly Share[]> {
    return (await this.request<{ shares: Share[] }>("GET", `/session/${segment(sessionId)}/shares`)).shares;
  }

  /** Revoke a link, and disconnect everyone who watches by it. */
  unshare(sessionId: string, tokenId: string): Promise<void> {
    const path = `/session/${segment(sessionId)}/shares/${segment(tokenId)}`;
    return this.request("DELETE", path, undefined, { repeatable: true });
  }

  /** Return the agents for new sessions. */
  async agents(): Promise<readonly HostedAgent[]> {
    return (await this.request<{ agents: HostedAgent[] }>("GET", "/agents")).agents;
  }

  /**
   * Send a request to any route. One that changes something is retried after a lost response only with `repeatable`.
   */
  request<Answer>(
    method: string,
    path: string,
    body?: unknown,
    { repeatable = method === "GET" } = {},
  ): Promise<Answer> {
    return this.http.ask<Answer>(method, path, body, { repeatable });
  }

  #query(wanted: PageWanted & { readonly after?: number }): string {
    const members = Object.entries({ acp: this.shape, ...wanted }).filter(([, value]) => value !== undefined);
    return String(new URLSearchParams(members.map(([name, value]) => [name, String(value)])));
  }
}

export interface PromptOptions {
  /** What to do while another turn runs; by default the prompt is queued, unless the operator configured otherwise. */
  readonly whenBusy?: WhenBusy;
  /** Idempotency key: a repeated prompt with the same key is the same prompt. A random one by default. */
  readonly key?: string;
  /** A name for the prompt, which the turn's events have as `promptRequestId`. */
  readonly requestId?: string | number;
  /** Cancel the turn if it has not ended after this many milliseconds. */
  readonly deadlineMs?: number;
  /** Sent to the agent with the prompt. */
  readonly _meta?: Readonly<Record<string, unknown>>;
}

export class SessionCalls {
  readonly #path: string;
  #namedAs: string | undefined;
  /** Prompts are submitted in the order of the calls. */
  protected order: Promise<unknown> = Promise.resolve();

  /** @internal */
  constructor(
    protected readonly http: Http,
    private readonly shape: Shape,
    readonly sessionId: string,
    /** The daemon's id of this client; undefined if it has none. */
    readonly clientId: string | undefined,
  ) {
    this.#path = `/session/${segment(sessionId)}`;
    this.#namedAs = clientId;
  }

  protected get acp(): string {
    return `?acp=${this.shape}`;
  }

  // -- prompting ---------------------------------------------------------------------------------------------

  /** Submit a prompt without waiting for its turn. */
  submit(content: Content, options: PromptOptions = {}): Promise<PromptReceipt> {
    const { send } = this.asPrompt("/prompt", content, options);
    const submitted = this.order.then(send);
    this.order = submitted.catch(() => {});
    return submitted;
  }

  /** Return a prompt's request, which can be repeated. Throws `LocalProtocolError`. */
  protected asPrompt(path: string, content: Content, options: PromptOptions): { key: string; send: () => Promise<PromptReceipt> } {
    const { whenBusy, requestId: promptRequestId, deadlineMs, _meta, key = `js-${randomId()}` } = options;
    if (!/^[\x20-\x7e]+$/.test(key)) {
      throw new LocalProtocolError(
        "not_legal_now",
        "a key is text of ASCII characters in one line; give such a one",
      );
    }
    const body = { prompt: blocksOf(content), ...defined({ whenBusy, promptRequestId, deadlineMs, _meta }) };
    // Copied now, so that later changes to the blocks do not change the prompt, even when it is sent again.
    const fixed = JSON.parse(JSON.stringify(body)) as object;
    const send = () =>
      this.ask<PromptReceipt>("POST", path, fixed, { headers: { "Idempotency-Key": key }, repeatable: true });
    return { key, send };
  }

  /** Cancel a turn, or the running one. Queued prompts stay in the queue. */
  async cancel(promptId?: string): Promise<void> {
    // A repeated cancel of the running turn may hit another turn.
    await this.ask("POST", "/cancel", defined({ promptId }), { repeatable: promptId !== undefined });
  }

  /** Declare a turn over although its agent has not reported its end. */
  async settle(promptId: string): Promise<void> {
    await this.ask("POST", "/settle", { promptId }, { repeatable: true });
  }

  /** Answer a permission request: with an `outcome`, or for a form with an `answer`. */
  reply(requestId: string, body: object): Promise<AnswerReceipt> {
    return this.ask<AnswerReceipt>("POST", `/permissions/${segment(requestId)}`, body, { repeatable: true });
  }

  // -- the queue ---------------------------------------------------------------------------------------------

  queue(): Promise<Queue> {
    return this.look<Queue>("/queue");
  }

  /** Start no queued prompt until the queue is released. */
  hold(): Promise<Queue> {
    return this.ask<Queue>("PATCH", "/queue", { held: true }, { repeatable: true });
  }

  release(): Promise<Queue> {
    return this.ask<Queue>("PATCH", "/queue", { held: false }, { repeatable: true });
  }

  /** Edit a queued prompt. */
  async edit(promptId: string, content: Content): Promise<void> {
    const body = { content: blocksOf(content) };
    await this.ask("PATCH", `/queue/${segment(promptId)}`, body, { repeatable: true });
  }

  /** Move a queued prompt; 0 is next. */
  async move(promptId: string, position: number): Promise<void> {
    await this.ask("PATCH", `/queue/${segment(promptId)}`, { position }, { repeatable: true });
  }

  /** Remove a queued prompt. It ends as cancelled. */
  async remove(promptId: string): Promise<void> {
    await this.ask("DELETE", `/queue/${segment(promptId)}`);
  }

  // -- what the agent offers ---------------------------------------------------------------------------------

  async setMode(modeId: string): Promise<void> {
    await this.ask("POST", "/mode", { modeId }, { repeatable: true });
  }

  async setModel(modelId: string): Promise<void> {
    await this.ask("POST", "/model", { modelId }, { repeatable: true });
  }

  /** Set one of the agent's options; return all of them afterwards. */
  async setOption(configId: string, value: string | boolean): Promise<readonly ConfigOption[]> {
    const path = `/config${this.acp}`;
    const chosen = await this.ask<{ configOptions: ConfigOption[] }>(
      "POST",
      path,
      { configId, value },
      { repeatable: true },
    );
    return chosen.configOptions;
  }

  // -- looking -----------------------------------------------------------------------------------------------

  /** Return the state: the agent's offers, the queue, open permission requests. */
  snapshot(): Promise<SessionSnapshot> {
    return this.look<SessionSnapshot>(this.acp);
  }

  transcript(): Promise<Transcript> {
    return this.look<Transcript>(`/transcript${this.acp}`);
  }

  /** Return one turn, including one that has ended or was prompted by another client. */
  turn(promptId: string): Promise<TurnStatus> {
    return this.look<TurnStatus>(`/turns/${segment(promptId)}`);
  }

  async rename(title: string | null): Promise<void> {
    await this.ask("PATCH", "", { title }, { repeatable: true });
  }

  /** Close the session: running and queued prompts are cancelled, and it accepts no more prompts. */
  async close(): Promise<void> {
    await this.ask("DELETE", "");
  }

  protected look<Answer>(path: string): Promise<Answer> {
    return this.ask<Answer>("GET", path, undefined, { repeatable: true });
  }

  protected async ask<Answer>(method: string, path: string, body?: unknown, asked: Asked = {}): Promise<Answer> {
    const named = this.#namedAs;
    const ask = (headers: Record<string, string>) =>
      this.http.ask<Answer>(method, this.#path + path, body, {
        ...asked,
        headers: { ...headers, ...asked.headers },
      });
    if (named === undefined) return ask({});
    try {
      return await ask({ "Turnwire-Client-Id": named });
    } catch (error) {
      if (!(error instanceof UnknownClient)) throw error;
      // The session remembers a bounded number of clients. Without an id this client may do the same.
      this.#namedAs = undefined;
      return ask({});
    }
  }
}

function blocksOf(content: Content): readonly object[] {
  if (typeof content === "string") return [{ type: "text", text: content }];
  if (Array.isArray(content) && content.length) return content as object[];
  throw new LocalProtocolError("not_legal_now", "a prompt is a text, or a list of at least one content block");
}
