/**
 * A session as a client holds it: prompt, listen, answer, look. Everything it tells comes from the session's log.
 * No turn ends with it: a turn goes on without its client, and only a cancel stops it.
 */

import type { ConfigOption, Content } from "./acp.js";
import { ClientClosed, LocalProtocolError, UnknownClient } from "./errors.js";
import type { AnyEvent, EventOf, EventType, PermissionMembers } from "./events.js";
import { type Asked, type Http, segment } from "./http.js";
import { randomId } from "./ids.js";
import { type Answer, PermissionRequest } from "./permission.js";
import { defined } from "./progress.js";
import type {
  AnswerReceipt,
  PromptReceipt,
  Queue,
  SessionOpened,
  SessionSnapshot,
  Transcript,
  TurnStatus,
  WhenBusy,
} from "./rest.js";
import type { EventSourceOf, Position, Shape } from "./source.js";
import type { Connection } from "./stream.js";
import { Turn } from "./turn.js";
import { type Handler, type PermissionHandler, Walk } from "./walk.js";

export interface PromptOptions {
  /** What to do while another turn runs; by default it waits, unless the daemon's operator chose otherwise. */
  readonly whenBusy?: WhenBusy;
  /** Makes a repeated prompt the same prompt. One that nobody else has, if it is left out. */
  readonly key?: string;
  /** A name of your own, which the turn's events have as `promptRequestId`. */
  readonly requestId?: string | number;
  /** The turn is cancelled if it has not ended after so many milliseconds. */
  readonly deadlineMs?: number;
  /** Goes to the agent with the prompt. */
  readonly _meta?: Readonly<Record<string, unknown>>;
}

/** @internal What a session is made of. */
export interface SessionParts {
  readonly http: Http;
  readonly source: EventSourceOf;
  readonly shape: Shape;
  onConnection(connection: Connection): void;
  onHandlerError(error: unknown): void;
  /** The session is not listened to any more. */
  onLeave(session: Session): void;
}

export class Session {
  readonly sessionId: string;
  /** The name by which the daemon knows this client; none if it did not give one. */
  readonly clientId: string | undefined;

  readonly #http: Http;
  readonly #path: string;
  readonly #acp: string;
  readonly #walk: Walk;
  readonly #onLeave: () => void;
  #namedAs: string | undefined;
  /** Prompts are submitted in the order of the calls. */
  #order: Promise<unknown> = Promise.resolve();

  /** @internal */
  constructor(parts: SessionParts, opened: SessionOpened, after: Position) {
    this.sessionId = opened.sessionId;
    this.clientId = this.#namedAs = opened.clientId;
    this.#http = parts.http;
    this.#path = `/session/${segment(opened.sessionId)}`;
    this.#acp = `?acp=${parts.shape}`;
    this.#onLeave = () => parts.onLeave(this);
    this.#walk = new Walk(
      {
        sessionId: opened.sessionId,
        source: parts.source,
        status: (promptId) => this.turn(promptId),
        answer: (request, answer) => this.answer(request, answer),
        onConnection: parts.onConnection,
        onHandlerError: parts.onHandlerError,
      },
      after,
    );
  }

  /** Where to go on from later: `client.attach(sessionId, { after: session.position })`. */
  get position(): Position {
    return this.#walk.position;
  }

  /** Stop listening. The session and its turns go on; whoever waits for one here gets `ClientClosed`. */
  leave(): void {
    this.#walk.fail(new ClientClosed());
    this.#onLeave();
  }

  // -- prompting ---------------------------------------------------------------------------------------------

  /** A turn, at once. What refuses the prompt is thrown where the turn is awaited, looped over or accepted. */
  prompt(content: Content, options: PromptOptions = {}): Turn {
    return this.#submit("/prompt", content, options);
  }

  /**
   * Put a word into the running turn, if its agent takes it; else it is the next. `outcome` and `reason` of
   * `turn.accepted` tell what became of it.
   */
  steer(content: Content, options: Omit<PromptOptions, "whenBusy"> = {}): Turn {
    return this.#submit("/steer", content, options);
  }

  /**
   * Send a prompt and nothing else: for a program that follows the session's events in a way of its own, such as a
   * page with one stream for all of them. Nothing is listened to for it.
   */
  submit(content: Content, options: PromptOptions = {}): Promise<PromptReceipt> {
    const { send } = this.#asPrompt("/prompt", content, options);
    const submitted = this.#order.then(send);
    this.#order = submitted.catch(() => {});
    return submitted;
  }

  #submit(path: string, content: Content, options: PromptOptions): Turn {
    const { key, send } = this.#asPrompt(path, content, options);
    const submitted = this.#order.then(() => this.#walk.submit(key, send));
    this.#order = submitted.catch(() => {});
    this.#walk.start();
    return new Turn(this, this.#walk, submitted);
  }

  /** A prompt as it is sent, as often as it takes. Throws `LocalProtocolError`. */
  #asPrompt(path: string, content: Content, options: PromptOptions): { key: string; send: () => Promise<PromptReceipt> } {
    const { whenBusy, requestId: promptRequestId, deadlineMs, _meta, key = `js-${randomId()}` } = options;
    if (!/^[\x20-\x7e]+$/.test(key)) {
      throw new LocalProtocolError(
        "not_legal_now",
        "a key is text of ASCII characters in one line; give such a one",
      );
    }
    const body = { prompt: blocksOf(content), ...defined({ whenBusy, promptRequestId, deadlineMs, _meta }) };
    // Read now: whoever changes the blocks afterwards does not change the prompt, also not when it is sent again.
    const fixed = JSON.parse(JSON.stringify(body)) as object;
    const send = () =>
      this.#ask<PromptReceipt>("POST", path, fixed, { headers: { "Idempotency-Key": key }, repeatable: true });
    return { key, send };
  }

  /** Ask for a turn to be stopped, or for whichever runs. Prompts in the queue stay there. */
  async cancel(promptId?: string): Promise<void> {
    // A cancel of whatever runs may meet another turn the second time.
    await this.#ask("POST", "/cancel", defined({ promptId }), { repeatable: promptId !== undefined });
  }

  /** Say that a turn is over although its agent never said so. */
  async settle(promptId: string): Promise<void> {
    await this.#ask("POST", "/settle", { promptId }, { repeatable: true });
  }

  // -- listening ---------------------------------------------------------------------------------------------

  /**
   * Call `handler` for each event of this type, or with `"*"` for every event. What is given back takes it away.
   */
  on<Type extends EventType>(type: Type, handler: Handler<EventOf<Type>>): () => void;
  on(type: string, handler: Handler<AnyEvent>): () => void;
  on(type: string, handler: Handler<never>): () => void {
    const all = this.#walk.handlers;
    all.set(type, [...(all.get(type) ?? []), handler]);
    this.#walk.start();
    return () => all.set(type, all.get(type)?.filter((each) => each !== handler) ?? []);
  }

  /** Ask `handler` for the answer to each permission request. What is given back takes it away. */
  onPermission(handler: PermissionHandler): () => void {
    const walk = this.#walk;
    walk.permissionHandlers = [...walk.permissionHandlers, handler];
    walk.start();
    return () => {
      walk.permissionHandlers = walk.permissionHandlers.filter((each) => each !== handler);
    };
  }

  /** Permission requests that wait for an answer. */
  async permissions(): Promise<PermissionRequest[]> {
    const open = await this.#look<{ permissions: PermissionMembers[] }>(`/permissions${this.#acp}`);
    return open.permissions.map((each) => new PermissionRequest(this.sessionId, each));
  }

  /** Answer a permission request. `won` is false if another answer counts. */
  answer(request: PermissionRequest, answer: Answer): Promise<AnswerReceipt> {
    const path = `/permissions/${segment(request.requestId)}`;
    return this.#ask<AnswerReceipt>("POST", path, request.reply(answer), { repeatable: true });
  }

  // -- the queue ---------------------------------------------------------------------------------------------

  queue(): Promise<Queue> {
    return this.#look<Queue>("/queue");
  }

  /** Nothing starts from the queue until it is released. */
  hold(): Promise<Queue> {
    return this.#ask<Queue>("PATCH", "/queue", { held: true }, { repeatable: true });
  }

  release(): Promise<Queue> {
    return this.#ask<Queue>("PATCH", "/queue", { held: false }, { repeatable: true });
  }

  /** Change a prompt that waits. */
  async edit(promptId: string, content: Content): Promise<void> {
    const body = { content: blocksOf(content) };
    await this.#ask("PATCH", `/queue/${segment(promptId)}`, body, { repeatable: true });
  }

  /** Move a prompt that waits; 0 is next. */
  async move(promptId: string, position: number): Promise<void> {
    await this.#ask("PATCH", `/queue/${segment(promptId)}`, { position }, { repeatable: true });
  }

  /** Take a prompt out of the queue. It ends as cancelled. */
  async remove(promptId: string): Promise<void> {
    await this.#ask("DELETE", `/queue/${segment(promptId)}`);
  }

  // -- what the agent offers ---------------------------------------------------------------------------------

  async setMode(modeId: string): Promise<void> {
    await this.#ask("POST", "/mode", { modeId }, { repeatable: true });
  }

  async setModel(modelId: string): Promise<void> {
    await this.#ask("POST", "/model", { modelId }, { repeatable: true });
  }

  /** Choose a value of one of the agent's options; gives all of them as they are then. */
  async setOption(configId: string, value: string | boolean): Promise<readonly ConfigOption[]> {
    const path = `/config${this.#acp}`;
    const chosen = await this.#ask<{ configOptions: ConfigOption[] }>(
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
    return this.#look<SessionSnapshot>(this.#acp);
  }

  transcript(): Promise<Transcript> {
    return this.#look<Transcript>(`/transcript${this.#acp}`);
  }

  /** One turn, also after its end and whoever prompted it. */
  turn(promptId: string): Promise<TurnStatus> {
    return this.#look<TurnStatus>(`/turns/${segment(promptId)}`);
  }

  async rename(title: string | null): Promise<void> {
    await this.#ask("PATCH", "", { title }, { repeatable: true });
  }

  /** End the session: what runs or waits is cancelled, and nothing can be prompted any more. */
  async close(): Promise<void> {
    await this.#ask("DELETE", "");
  }

  #look<Answer>(path: string): Promise<Answer> {
    return this.#ask<Answer>("GET", path, undefined, { repeatable: true });
  }

  async #ask<Answer>(method: string, path: string, body?: unknown, asked: Asked = {}): Promise<Answer> {
    const named = this.#namedAs;
    const ask = (headers: Record<string, string>) =>
      this.#http.ask<Answer>(method, this.#path + path, body, {
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
