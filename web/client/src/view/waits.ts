/** The pending parts of a session: open permission requests, and the queue. */

import type { AnyEvent, PermissionMembers } from "../events.js";
import { storedType } from "./turns.js";

export interface Waits {
  /** Prompts, the next one first; also some that wait no more. */
  readonly order: readonly string[];
  readonly steering: ReadonlyMap<string, boolean>;
  readonly permissions: readonly PermissionMembers[];
  readonly held: string | undefined;
}

/** Return the state after an event; the same object if nothing changes. */
export function waitsAfter(waits: Waits, event: AnyEvent): Waits {
  switch (event.type) {
    case "permission_request": {
      const others = waits.permissions.filter((each) => each.requestId !== event.data.requestId);
      return { ...waits, permissions: [...others, event.data] };
    }
    case "permission_resolved": {
      const { requestId } = event.data;
      return { ...waits, permissions: waits.permissions.filter((each) => each.requestId !== requestId) };
    }
    case "queue_held":
      return { ...waits, held: event.data.reason };
    case "queue_released":
      return { ...waits, held: undefined };
    case "prompt_accepted":
      return { ...waits, order: moved(waits.order, event.data.promptId, undefined) };
    case "pending_prompt_added": {
      const { promptId, position, steering } = event.data;
      return {
        ...waits,
        order: moved(waits.order, promptId, position),
        steering: steering ? new Map([...waits.steering, [promptId, true]]) : waits.steering,
      };
    }
    case "prompt_steer_declined":
      return { ...waits, steering: new Map([...waits.steering, [event.data.promptId, false]]) };
    case "pending_prompt_updated": {
      const { promptId, position } = event.data;
      return position === undefined ? waits : { ...waits, order: moved(waits.order, promptId, position) };
    }
    case "prompt_offered":
    case "prompt_injected":
    case "turn_complete":
    case "turn_error":
      return without(waits, event.data.promptId);
    case "state_changed":
      return storedType(event) === "turn_started" ? without(waits, event.data.promptId) : waits;
    default:
      return waits;
  }
}

function without(waits: Waits, promptId: string): Waits {
  if (!waits.order.includes(promptId)) return waits;
  const steering = new Map(waits.steering);
  steering.delete(promptId);
  return { ...waits, order: waits.order.filter((each) => each !== promptId), steering };
}

function moved(order: readonly string[], promptId: string, position: number | undefined): readonly string[] {
  const others = order.filter((each) => each !== promptId);
  const place = position ?? others.length;
  return [...others.slice(0, place), promptId, ...others.slice(place)];
}
