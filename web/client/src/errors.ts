/**
 * Errors, one class per cause. An error of the daemon is identified by the `code` of its problem, has the daemon's
 * message, and has all members of the problem in `context`. An unknown code becomes `DaemonRefused`. Stop reasons and
 * cancellation are results, not errors.
 */

export class TurnwireError extends Error {
  override name = "TurnwireError";

  constructor(
    /** The cause, for programs. */
    readonly code: string,
    message: string,
    /** Members of the problem, or other details. */
    readonly context: Readonly<Record<string, unknown>> = {},
  ) {
    super(message);
  }

  /** The HTTP status of the daemon's response. */
  get status(): number | undefined {
    return this.context["status"] as number | undefined;
  }
}

// Errors of the daemon. `declare` makes each a distinct type.

export class AgentLaunchFailed extends TurnwireError {
  declare readonly code: "agent_launch_failed";
}
export class AgentUnavailable extends TurnwireError {
  declare readonly code: "agent_unavailable";
}
export class AuthRequired extends TurnwireError {
  declare readonly code: "auth_required";
}
export class BadRequest extends TurnwireError {
  declare readonly code: "bad_request" | "invalid_cwd";
}
export class ChildRestricted extends TurnwireError {
  declare readonly code: "child_restricted";
}
export class ContentRefused extends TurnwireError {
  declare readonly code: "content_refused";
}
export class Forbidden extends TurnwireError {
  declare readonly code: "forbidden";
}
export class IdempotencyConflict extends TurnwireError {
  declare readonly code: "idempotency_conflict";
}
export class InvalidMetadata extends TurnwireError {
  declare readonly code: "invalid_metadata";
}
export class InvalidMode extends TurnwireError {
  declare readonly code: "invalid_approval_mode";
}
export class InvalidOption extends TurnwireError {
  declare readonly code: "invalid_option_id";
}
export class LimitExceeded extends TurnwireError {
  declare readonly code: "limit_exceeded";
}
export class LocalProtocolError extends TurnwireError {
  declare readonly code: "not_legal_now";
}
export class LogUnavailable extends TurnwireError {
  declare readonly code: "log_unavailable" | "log_locked" | "log_full";
}
export class NotFound extends TurnwireError {
  declare readonly code: "not_found";
}
export class PermissionNotFound extends TurnwireError {
  declare readonly code: "permission_not_found";
}
/** Also raised by a client whose stream lost events of a turn that it waited for. */
export class PositionLost extends TurnwireError {
  declare readonly code: "position_lost";
}
export class PromptNotFound extends TurnwireError {
  declare readonly code: "prompt_not_found";
}
export class PromptNotQueued extends TurnwireError {
  declare readonly code: "prompt_not_queued";
}
export class QueueFull extends TurnwireError {
  declare readonly code: "prompt_queue_full";
}
export class QueueTooLarge extends TurnwireError {
  declare readonly code: "prompt_queue_too_large";
}
export class SessionBusy extends TurnwireError {
  declare readonly code: "busy";
}
export class SessionClosed extends TurnwireError {
  declare readonly code: "session_closed";
}
export class SessionExists extends TurnwireError {
  declare readonly code: "session_id_conflict";
}
export class SessionLimitReached extends TurnwireError {
  declare readonly code: "session_limit_exceeded";
}
export class SessionNotFound extends TurnwireError {
  declare readonly code: "session_not_found";
}
export class ShuttingDown extends TurnwireError {
  declare readonly code: "shutting_down";
}
export class TooManyRequests extends TurnwireError {
  declare readonly code: "rate_limited";
}
export class Unauthenticated extends TurnwireError {
  declare readonly code: "unauthenticated";
}
export class UnknownAgent extends TurnwireError {
  declare readonly code: "unknown_agent";
}
export class UnknownClient extends TurnwireError {
  declare readonly code: "invalid_client_id";
}
/** An unknown or missing cause. `code` is the daemon's, if present. */
export class DaemonRefused extends TurnwireError {}

// Errors detected by this client.

/** No daemon answers, or its response was lost. */
export class DaemonUnreachable extends TurnwireError {
  declare readonly code: "daemon_unreachable";

  constructor(message: string) {
    super("daemon_unreachable", message);
  }
}
/** The response violates the contract. */
export class RemoteProtocolError extends TurnwireError {
  declare readonly code: "peer_broke_protocol";

  constructor(message: string) {
    super("peer_broke_protocol", message);
  }
}
export class ClientClosed extends TurnwireError {
  declare readonly code: "client_closed";

  constructor() {
    super("client_closed", "the client is closed; connect again, and go on with the session there");
  }
}
/** A turn ended with an error. */
export class TurnError extends TurnwireError {
  declare readonly code: "turn_failed";

  constructor(
    readonly promptId: string,
    /** `agent_error`, `agent_exited`, `daemon_restarted` … */
    readonly reason: string,
    message: string,
    /** `exitCode`, `signal`, `stderrTail`, `agentError`, where they are known. */
    context: Readonly<Record<string, unknown>>,
    /** Errors thrown by handlers of the turn, in order. */
    readonly handlerErrors: readonly unknown[],
  ) {
    super("turn_failed", `the turn failed (${reason}): ${message}`, context);
  }
}

type Refusal = new (code: string, message: string, context: Readonly<Record<string, unknown>>) => TurnwireError;

const BY_CODE: Readonly<Record<string, Refusal>> = {
  agent_launch_failed: AgentLaunchFailed,
  agent_unavailable: AgentUnavailable,
  auth_required: AuthRequired,
  bad_request: BadRequest,
  busy: SessionBusy,
  child_restricted: ChildRestricted,
  content_refused: ContentRefused,
  forbidden: Forbidden,
  idempotency_conflict: IdempotencyConflict,
  invalid_approval_mode: InvalidMode,
  invalid_client_id: UnknownClient,
  invalid_cwd: BadRequest,
  invalid_metadata: InvalidMetadata,
  invalid_option_id: InvalidOption,
  limit_exceeded: LimitExceeded,
  log_full: LogUnavailable,
  log_locked: LogUnavailable,
  log_unavailable: LogUnavailable,
  not_found: NotFound,
  not_legal_now: LocalProtocolError,
  permission_not_found: PermissionNotFound,
  position_lost: PositionLost,
  prompt_not_found: PromptNotFound,
  prompt_not_queued: PromptNotQueued,
  prompt_queue_full: QueueFull,
  prompt_queue_too_large: QueueTooLarge,
  rate_limited: TooManyRequests,
  session_closed: SessionClosed,
  session_id_conflict: SessionExists,
  session_limit_exceeded: SessionLimitReached,
  session_not_found: SessionNotFound,
  shutting_down: ShuttingDown,
  unauthenticated: Unauthenticated,
  unknown_agent: UnknownAgent,
};
/** Statuses that a proxy may send in place of the daemon. */
const BY_STATUS: Readonly<Record<number, string>> = {
  401: "unauthenticated",
  403: "forbidden",
  404: "not_found",
  429: "rate_limited",
};
/** Statuses of servers and proxies for temporary conditions. */
const PASSING = new Set([408, 425, 429, 502, 503, 504]);

/** Return the error in a response. `retryAfterMs` is in its context if the daemon asks to wait. */
export function refusalOf(status: number, retryAfter: string | null, problem: unknown): TurnwireError {
  const members = typeof problem === "object" && problem !== null ? (problem as Record<string, unknown>) : {};
  const context: Record<string, unknown> = { ...members, status };
  const seconds = Number(retryAfter ?? Number.NaN);
  if (seconds >= 0) context["retryAfterMs"] = Math.min(seconds, 3600) * 1000;
  const code = typeof members["code"] === "string" ? members["code"] : (BY_STATUS[status] ?? `http_${status}`);
  const text = members["detail"] ?? members["error"];
  const message =
    typeof text === "string"
      ? text
      : `the request was refused with HTTP ${status} and no reason; is there a turnwire daemon at this URL?`;
  return new (BY_CODE[code] ?? DaemonRefused)(code, message, context);
}

/** Whether the same request may succeed a moment later, independently of the state of sessions and agents. */
export function isPassing(error: unknown): error is TurnwireError {
  if (error instanceof DaemonRefused) return PASSING.has(error.status ?? 0);
  return (
    error instanceof DaemonUnreachable ||
    error instanceof ShuttingDown ||
    error instanceof TooManyRequests ||
    error instanceof LogUnavailable
  );
}
