/**
 * A permission request of the agent, and the conversion of short answers into its options. A `reject` never becomes an
 * approval: without a reject option the agent receives `cancelled`. An answer that does not fit the request is not
 * sent.
 */

import type { PermissionOption, PermissionOutcome } from "./acp.js";
import { InvalidOption, LocalProtocolError } from "./errors.js";
import type { PermissionMembers } from "./events.js";

/**
 * An option or its id, `"reject"` (the mildest option that rejects), or the complete answer: an `outcome`, or for a
 * form an `action` with its `content`.
 */
export type Answer =
  | string
  | PermissionOption
  | { readonly outcome: PermissionOutcome }
  | { readonly action: "accept" | "decline" | "cancel"; readonly content?: Readonly<Record<string, unknown>> };

const REJECT = "reject";
const REJECTING = ["reject_once", "reject_always"];

export class PermissionRequest {
  readonly requestId: string;
  /** The turn that waits for it. */
  readonly promptId: string | undefined;
  /** The child session that asks; undefined for the session itself. */
  readonly child: string | undefined;
  /** `session/request_permission` or `elicitation/create`. */
  readonly method: string;
  /** The options; empty if it accepts a free answer. */
  readonly options: readonly PermissionOption[];

  /** @internal */
  constructor(
    readonly sessionId: string,
    /** All members of the request: `toolCall`, `params` … */
    readonly data: PermissionMembers,
  ) {
    this.requestId = data.requestId;
    this.promptId = data.promptId;
    this.child = data.child;
    this.method = data.method;
    this.options = data.options ?? data.optionIds?.map((optionId) => ({ optionId })) ?? [];
  }

  /** The agent's title of the subject; empty if it has no title. */
  get title(): string {
    const params = this.data.params as { readonly message?: unknown } | undefined;
    const title = this.data.title ?? params?.message ?? this.data.toolCall?.title;
    return typeof title === "string" ? title : "";
  }

  /** @internal Return the body for the daemon. Throws `InvalidOption`, `LocalProtocolError`. */
  reply(answer: Answer): object {
    if (typeof answer === "string") {
      if (answer !== REJECT || this.#offers(REJECT)) return this.#select(answer);
      const rejecting = REJECTING.map((kind) => this.options.find((each) => each.kind === kind)).find(Boolean);
      if (rejecting) return this.#select(rejecting.optionId);
      return this.#isForm ? { answer: { action: "decline" } } : { outcome: { outcome: "cancelled" } };
    }
    if (typeof answer === "object" && answer !== null) {
      if ("optionId" in answer) return this.#select(answer.optionId);
      if ("action" in answer && this.#isForm) return { answer };
      if ("outcome" in answer && !this.#isForm) {
        if (answer.outcome.outcome === "selected") this.#select(answer.outcome.optionId);
        return answer;
      }
    }
    throw new LocalProtocolError(
      "not_legal_now",
      this.#isForm
        ? 'this is no answer to the form; give "reject", or an `action` that is accept, decline or cancel'
        : 'this is no answer to the permission request; give an option or its id, "reject", or an `outcome`',
    );
  }

  get #isForm(): boolean {
    return this.method !== "session/request_permission";
  }

  #offers(optionId: string): boolean {
    return this.options.some((each) => each.optionId === optionId);
  }

  #select(optionId: string): object {
    if (this.#offers(optionId)) return { outcome: { outcome: "selected", optionId } };
    throw new InvalidOption(
      "invalid_option_id",
      "the agent did not offer this option; give one of the offered ones",
      {
        requestId: this.requestId,
        options: this.options.map((each) => each.optionId),
      },
    );
  }
}
