/**
 * A turn for the program that prompted it. `await turn` returns when the turn has ended and every handler call for it
 * has finished. A loop over it may start late, run twice or run in parallel, and gets every update of the turn each
 * time. Only the terminal event ends a turn.
 */

import type { Content } from "./acp.js";
import type { UpdateEvent } from "./events.js";
import type { Progress, TurnResult } from "./progress.js";
import type { PromptReceipt } from "./rest.js";
import type { Session } from "./session.js";
import type { Walk } from "./walk.js";

export class Turn implements PromiseLike<TurnResult>, AsyncIterable<UpdateEvent> {
  /** Resolves once the prompt is recorded; rejects with the error of a rejected prompt. */
  readonly accepted: Promise<PromptReceipt>;
  /** @internal */
  readonly progress: Promise<Progress>;
  #promptId: string | undefined;

  /** @internal */
  constructor(
    private readonly session: Session,
    private readonly walk: Walk,
    submitted: Promise<[PromptReceipt, Promise<Progress>]>,
  ) {
    this.accepted = submitted.then(([receipt]) => {
      this.#promptId = receipt.promptId;
      return receipt;
    });
    this.progress = submitted.then(([, progress]) => progress);
    // An awaiting caller gets the error; without one it must not end the program.
    this.accepted.catch(() => {});
    this.progress.catch(() => {});
  }

  /** Its id; undefined until it is accepted. */
  get promptId(): string | undefined {
    return this.#promptId;
  }

  /** Return the drained end of the turn. Throws `TurnError`, and the error of a rejected prompt. */
  async result(): Promise<TurnResult> {
    return (await this.progress).drained;
  }

  then<Kept = TurnResult, Broken = never>(
    kept?: ((result: TurnResult) => Kept | PromiseLike<Kept>) | null,
    broken?: ((reason: unknown) => Broken | PromiseLike<Broken>) | null,
  ): Promise<Kept | Broken> {
    return this.result().then(kept, broken);
  }

  /** The turn's updates in order, to its end. A failed turn ends the loop; `await` it for the error. */
  async *[Symbol.asyncIterator](): AsyncGenerator<UpdateEvent, void, undefined> {
    const progress = await this.progress;
    const done = this.walk.looping();
    try {
      for (let at = 0; ;) {
        const update = progress.updates[at];
        if (update) {
          at++;
          yield update;
        } else if (progress.failure) throw progress.failure;
        else if (progress.terminal) return;
        else await progress.changed;
      }
    } finally {
      done();
    }
  }

  // -- what can be done about it -----------------------------------------------------------------------------

  /** Cancel it. It then ends as `cancelled`; a turn that has ended is unaffected. */
  async cancel(): Promise<void> {
    await this.session.cancel((await this.accepted).promptId);
  }

  /** Declare it over although its agent has not reported its end. */
  async settle(): Promise<void> {
    await this.session.settle((await this.accepted).promptId);
  }

  /** Edit the prompt while it is queued. Throws `PromptNotQueued` afterwards. */
  async edit(content: Content): Promise<void> {
    await this.session.edit((await this.accepted).promptId, content);
  }

  /** Move the prompt while it is queued; 0 is next. */
  async move(position: number): Promise<void> {
    await this.session.move((await this.accepted).promptId, position);
  }

  /** Remove the prompt from the queue. */
  async remove(): Promise<void> {
    await this.session.remove((await this.accepted).promptId);
  }
}
