/**
 * A turn as the program that prompted it holds it. `await turn` returns when the turn has ended and every handler
 * call for it has finished. A loop over it may begin late, run twice, or run beside others, and has every update of
 * the turn each time. No turn is ended here: only its terminal event ends it.
 */

import type { Content } from "./acp.js";
import type { UpdateEvent } from "./events.js";
import type { Progress, TurnResult } from "./progress.js";
import type { PromptReceipt } from "./rest.js";
import type { Session } from "./session.js";
import type { Walk } from "./walk.js";

export class Turn implements PromiseLike<TurnResult>, AsyncIterable<UpdateEvent> {
  /** Kept once the prompt is recorded; broken by what refused it. */
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

  /** Its id; none until it is accepted. */
  get promptId(): string | undefined {
    return this.#promptId;
  }

  /** The end of the turn, drained. Throws `TurnError`, and what refused the prompt. */
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

  /** Ask for it to be stopped. Its end then says `cancelled`; one that has ended is left alone. */
  async cancel(): Promise<void> {
    await this.session.cancel((await this.accepted).promptId);
  }

  /** Say that it is over although its agent never said so. */
  async settle(): Promise<void> {
    await this.session.settle((await this.accepted).promptId);
  }

  /** Change the prompt while it waits in the queue. Throws `PromptNotQueued` after that. */
  async edit(content: Content): Promise<void> {
    await this.session.edit((await this.accepted).promptId, content);
  }

  /** Move the prompt while it waits; 0 is next. */
  async move(position: number): Promise<void> {
    await this.session.move((await this.accepted).promptId, position);
  }

  /** Take the prompt out of the queue. */
  async remove(): Promise<void> {
    await this.session.remove((await this.accepted).promptId);
  }
}
