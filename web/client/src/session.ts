/**
 * A session for a client: prompt, subscribe, answer, read. Its data comes from the session's log. Turns continue
 * without their client; only a cancel stops them.
 */

import type { Content } from "./acp.js";
import { type PromptOptions, SessionCalls } from "./calls.js";
import { ClientClosed } from "./errors.js";
import type { AnyEvent, EventOf, EventType, PermissionMembers } from "./events.js";
import type { Http } from "./http.js";
import { type Answer, PermissionRequest } from "./permission.js";
import type { TurnResult } from "./progress.js";
import type { AnswerReceipt, SessionOpened } from "./rest.js";
import type { EventSourceOf, Position, Shape } from "./source.js";
import type { Connection } from "./stream.js";
import { Turn } from "./turn.js";
import { type Handler, type PermissionHandler, Walk } from "./walk.js";

/** @internal The parts of a session. */
export interface SessionParts {
  readonly http: Http;
  readonly source: EventSourceOf;
  readonly shape: Shape;
  onConnection(connection: Connection): void;
  onHandlerError(error: unknown): void;
  /** The session has been unsubscribed. */
  onLeave(session: Session): void;
}

/** Number of request ids of own prompts that a session remembers for `completed`. */
const REMEMBERED = 256;

export class Session extends SessionCalls {
  /** The newest own prompt with each request id. */
  readonly #named = new Map<string | number, Turn>();
  readonly #walk: Walk;
  readonly #onLeave: () => void;

  /** @internal */
  constructor(parts: SessionParts, opened: SessionOpened, after: Position) {
    super(parts.http, parts.shape, opened.sessionId, opened.clientId);
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

  /** The position to resume from: `client.attach(sessionId, { after: session.position })`. */
  get position(): Position {
    return this.#walk.position;
  }

  /** Unsubscribe. The session and its turns continue; pending calls here fail with `ClientClosed`. */
  leave(): void {
    this.#walk.fail(new ClientClosed());
    this.#onLeave();
  }

  // -- prompting ---------------------------------------------------------------------------------------------

  /**
   * Submit a prompt and return its turn immediately. Awaiting, iterating or accepting the turn throws the error of a
   * rejected prompt.
   */
  prompt(content: Content, options: PromptOptions = {}): Turn {
    return this.#submit("/prompt", content, options);
  }

  /**
   * Inject a prompt into the running turn if its agent accepts that; otherwise it is next. `outcome` and `reason` of
   * `turn.accepted` have the result.
   */
  steer(content: Content, options: Omit<PromptOptions, "whenBusy"> = {}): Turn {
    return this.#submit("/steer", content, options);
  }

  #submit(path: string, content: Content, options: PromptOptions): Turn {
    const { key, send } = this.asPrompt(path, content, options);
    const submitted = this.order.then(() => this.#walk.submit(key, send));
    this.order = submitted.catch(() => {});
    this.#walk.start();
    const turn = new Turn(this, this.#walk, submitted);
    if (options.requestId !== undefined) this.#name(options.requestId, turn);
    return turn;
  }

  #name(requestId: string | number, turn: Turn): void {
    this.#named.delete(requestId);
    this.#named.set(requestId, turn);
    if (this.#named.size > REMEMBERED) this.#named.delete(this.#named.keys().next().value!);
  }

  /**
   * Return the drained end of the newest turn prompted with exactly this request id (`5` is not `"5"`). A prompt of
   * this object comes first, even while it is being submitted; otherwise wait for the next one by any client. Throws
   * the errors of awaiting the turn.
   */
  async completed(requestId: string | number): Promise<TurnResult> {
    const own = this.#named.get(requestId);
    return own ? own.result() : (await this.#walk.named(requestId)).drained;
  }

  // -- listening ---------------------------------------------------------------------------------------------

  /** Call `handler` for each event of this type, or with `"*"` for every event. The returned function removes it. */
  on<Type extends EventType>(type: Type, handler: Handler<EventOf<Type>>): () => void;
  on(type: string, handler: Handler<AnyEvent>): () => void;
  on(type: string, handler: Handler<never>): () => void {
    const all = this.#walk.handlers;
    all.set(type, [...(all.get(type) ?? []), handler]);
    this.#walk.start();
    return () => all.set(type, all.get(type)?.filter((each) => each !== handler) ?? []);
  }

  /** Let `handler` answer each permission request. The returned function removes it. */
  onPermission(handler: PermissionHandler): () => void {
    const walk = this.#walk;
    walk.permissionHandlers = [...walk.permissionHandlers, handler];
    walk.start();
    return () => {
      walk.permissionHandlers = walk.permissionHandlers.filter((each) => each !== handler);
    };
  }

  /** Return the open permission requests. */
  async permissions(): Promise<PermissionRequest[]> {
    const open = await this.look<{ permissions: PermissionMembers[] }>(`/permissions${this.acp}`);
    return open.permissions.map((each) => new PermissionRequest(this.sessionId, each));
  }

  /** Answer a permission request. `won` is false if another answer counts. */
  answer(request: PermissionRequest, answer: Answer): Promise<AnswerReceipt> {
    return this.reply(request.requestId, request.reply(answer));
  }
}
