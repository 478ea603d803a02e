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

/** How a daemon is reached. */
export interface CallOptions {
  /** Without one, a browser sends the cookie of its login, which needs `pageKey`. */
  readonly token?: string;
  /** `Turnwire-Page-Key` of the answer that set the cookie. */
  readonly pageKey?: string | undefined;
  /** Another `fetch` than the platform's. */
  readonly fetch?: typeof fetch;
  /** The dialect of agent updates; `"1"` by default. */
  readonly acp?: Shape;
  /** How long a request is tried again: 10 seconds. */
  readonly requestRetryMs?: number;
  /** How long a stream may be silent before it is reopened: 45 seconds, three heartbeats of the daemon. */
  readonly silenceMs?: number;
  /** Time and chance, for tests. */
  readonly clock?: Clock;
}

/** Which items of a transcript, and in whose words. */
export interface PageWanted {
  readonly limit?: number;
  /** `before` of a page. */
  readonly before?: number;
  readonly acp?: Shape;
}

const PAGE = 100;

/** A daemon that answers, to be asked. Throws `DaemonUnreachable`, `Unauthenticated`. */
export async function reach(url: string | URL, options: CallOptions = {}): Promise<DaemonCalls> {
  const [http, capabilities] = await answering(url, options);
  return new DaemonCalls(http, options.acp ?? "1", capabilities);
}

/** @internal Return the connection to a daemon that answers, and its capabilities. */
export async function answering(url: string | URL, options: CallOptions): Promise<[Http, Capabilities]> {
  const http = new Http(url, {
    token: options.token,
    pageKey: options.pageKey,
    // Called as a plain function: a browser's own refuses to be called as a method of anything else.
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
    /** What the daemon can do. */
    readonly capabilities: Capabilities,
  ) {}

  /** What can be asked of a session. */
  session(sessionId: string): SessionCalls {
    return new SessionCalls(this.http, this.shape, sessionId, undefined);
  }

  /** A new session. */
  async open(wanted: NewSession = {}): Promise<SessionOpened> {
    // The id is ours, so that asking again after a lost answer cannot make two sessions.
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

  /** Every session that the credential may see. */
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

  /** The same of a child session. */
  childTranscript(sessionId: string, childId: string, wanted: PageWanted = {}): Promise<ChildTranscript> {
    const path = `/session/${segment(sessionId)}/children/${segment(childId)}/transcript`;
    return this.request("GET", `${path}?${this.#query(wanted)}`);
  }

  /** A part of a session's log: the events behind `after`. */
  log(
    sessionId: string,
    wanted: { readonly after?: number; readonly limit?: number; readonly acp?: Shape } = {},
  ): Promise<LogPart> {
    return this.request("GET", `/session/${segment(sessionId)}/log?${this.#query(wanted)}`);
  }

  /** Put a session away: lists leave it out until it is prompted or taken back. */
  archive(sessionId: string): Promise<void> {
    return this.request("POST", `/session/${segment(sessionId)}/archive`, undefined, { repeatable: true });
  }

  unarchive(sessionId: string): Promise<void> {
    return this.request("POST", `/session/${segment(sessionId)}/unarchive`, undefined, { repeatable: true });
  }

  /** A link by which anybody watches the session; good for a day, or as long as is said. */
  share(sessionId: string, wanted: { readonly expiresInS?: number } = {}): Promise<NewShare> {
    return this.request("POST", `/session/${segment(sessionId)}/share`, wanted);
  }

  /** The links that are good. */
  async shares(sessionId: string): Promise<readonly Share[]> {
    return (await this.request<{ shares: Share[] }>("GET", `/session/${segment(sessionId)}/shares`)).shares;
  }

  /** End a link, and all that watch by it. */
  unshare(sessionId: string, tokenId: string): Promise<void> {
    const path = `/session/${segment(sessionId)}/shares/${segment(tokenId)}`;
    return this.request("DELETE", path, undefined, { repeatable: true });
  }

  /** The agents that sessions can be made for. */
  async agents(): Promise<readonly HostedAgent[]> {
    return (await this.request<{ agents: HostedAgent[] }>("GET", "/agents")).agents;
  }

  /** Any other route. One that changes something is repeated after a lost answer only if you say `repeatable`. */
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
  /** What to do while another turn runs; by default it waits, unless the daemon's operator chose otherwise. */
  readonly whenBusy?: WhenBusy;
  /** Idempotency key: a repeated prompt with the same key is the same prompt. A random one by default. */
  readonly key?: string;
  /** A name of your own, which the turn's events have as `promptRequestId`. */
  readonly requestId?: string | number;
  /** Cancel the turn if it has not ended after this many milliseconds. */
  readonly deadlineMs?: number;
  /** Goes to the agent with the prompt. */
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
    /** The name by which the daemon knows this client; none if it did not give one. */
    readonly clientId: string | undefined,
  ) {
    this.#path = `/session/${segment(sessionId)}`;
    this.#namedAs = clientId;
  }

  protected get acp(): string {
    return `?acp=${this.shape}`;
  }

  // -- prompting ---------------------------------------------------------------------------------------------

  /** Send a prompt, and listen to nothing for it. */
  submit(content: Content, options: PromptOptions = {}): Promise<PromptReceipt> {
    const { send } = this.asPrompt("/prompt", content, options);
    const submitted = this.order.then(send);
    this.order = submitted.catch(() => {});
    return submitted;
  }

  /** A prompt as it is sent, as often as it takes. Throws `LocalProtocolError`. */
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

  /** Ask for a turn to be stopped, or for whichever runs. Prompts in the queue stay there. */
  async cancel(promptId?: string): Promise<void> {
    // A cancel of whatever runs may meet another turn the second time.
    await this.ask("POST", "/cancel", defined({ promptId }), { repeatable: promptId !== undefined });
  }

  /** Say that a turn is over although its agent never said so. */
  async settle(promptId: string): Promise<void> {
    await this.ask("POST", "/settle", { promptId }, { repeatable: true });
  }

  /** Answer a permission request as the daemon takes it: an `outcome`, or for a form an `answer`. */
  reply(requestId: string, body: object): Promise<AnswerReceipt> {
    return this.ask<AnswerReceipt>("POST", `/permissions/${segment(requestId)}`, body, { repeatable: true });
  }

  // -- the queue ---------------------------------------------------------------------------------------------

  queue(): Promise<Queue> {
    return this.look<Queue>("/queue");
  }

  /** Nothing starts from the queue until it is released. */
  hold(): Promise<Queue> {
    return this.ask<Queue>("PATCH", "/queue", { held: true }, { repeatable: true });
  }

  release(): Promise<Queue> {
    return this.ask<Queue>("PATCH", "/queue", { held: false }, { repeatable: true });
  }

  /** Change a prompt that waits. */
  async edit(promptId: string, content: Content): Promise<void> {
    const body = { content: blocksOf(content) };
    await this.ask("PATCH", `/queue/${segment(promptId)}`, body, { repeatable: true });
  }

  /** Move a prompt that waits; 0 is next. */
  async move(promptId: string, position: number): Promise<void> {
    await this.ask("PATCH", `/queue/${segment(promptId)}`, { position }, { repeatable: true });
  }

  /** Take a prompt out of the queue. It ends as cancelled. */
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

  /** Choose a value of one of the agent's options; gives all of them as they are then. */
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

  /** Where it stands: what the agent offers, the queue, open permission requests. */
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

  /** End the session: what runs or waits is cancelled, and nothing can be prompted any more. */
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
      // The session remembers a bounded number of clients. Without a name we may do the same things.
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
