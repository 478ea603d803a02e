/** The answer to `GET …/explain` as findings and evidence for people. */

/** The body of `GET …/explain`; defaults are left out there. */
export interface Explanation {
  readonly state: string;
  readonly suspectedComplete?: boolean;
  readonly reasons?: readonly string[];
  readonly promptId?: string;
  readonly quietS?: number;
  readonly waitingFor?: readonly string[];
  readonly toolsInFlight?: readonly string[];
  readonly queued?: readonly string[];
  readonly queueHeld?: string;
  readonly background?: readonly { readonly kind?: string; readonly id?: string }[];
  readonly agent?: {
    readonly connected: boolean;
    readonly opened?: string;
    readonly refused?: readonly string[];
    readonly pid?: number;
    readonly openRequests?: number;
    readonly breaches?: Readonly<Record<string, number>>;
    readonly strays?: Readonly<Record<string, number>>;
    readonly lastReceived?: readonly string[];
    readonly lastSent?: readonly string[];
    readonly brokenLines?: readonly string[];
    readonly stderrTail?: string;
  };
  readonly clients?: Readonly<Record<string, string>>;
  readonly attended?: boolean;
}

export interface Finding {
  readonly words: string;
  /** Whether it requires an action. */
  readonly tone: "good" | "warn" | "info";
}

/** Return what blocks the session, the most likely cause first; never empty. */
export function findingsOf(known: Explanation): Finding[] {
  const found = [...waits(known)];
  if (found.length > 0) return found;
  const words = known.state === "idle" ? "Nothing is stuck: no turn runs." : "Nothing looks stuck: the agent works.";
  return [{ words, tone: "good" }];
}

function* waits(known: Explanation): Generator<Finding> {
  const { waitingFor = [], queued = [], toolsInFlight = [], reasons = [], agent } = known;
  if (waitingFor.length > 0) {
    yield { words: `The agent waits for an answer: ${counted(waitingFor.length, "permission request")}.`, tone: "warn" };
  }
  if (known.queueHeld !== undefined && queued.length > 0) {
    yield { words: `The queue is held (${known.queueHeld}); ${counted(queued.length, "prompt")} in it.`, tone: "warn" };
  }
  if (known.promptId === undefined) return;
  if (known.suspectedComplete) {
    const because = reasons.join("; ");
    yield { words: `The turn may be over although the agent never said so: ${because}.`, tone: "warn" };
  }
  if (known.state === "cancelling") {
    yield { words: "A cancel was asked for and is not confirmed; harder means follow by themselves.", tone: "info" };
  } else if (!agent?.connected) {
    yield { words: `The agent is not there; ${reasons.join("; ") || "it is being started, or cannot be"}.`, tone: "warn" };
  } else if (toolsInFlight.length > 0 && waitingFor.length === 0) {
    yield { words: `A tool call is not finished: ${toolsInFlight.join(", ")}.`, tone: "info" };
  } else if (agent.openRequests && !known.suspectedComplete && waitingFor.length === 0) {
    yield { words: `The agent has not answered ${counted(agent.openRequests, "request")} of ours.`, tone: "info" };
  }
}

function counted(count: number, what: string): string {
  return `${count} ${what}${count === 1 ? "" : "s"}`;
}

/** A piece of evidence: a word, or preformatted lines. */
export interface Evidence {
  readonly name: string;
  readonly value: string | readonly string[];
}

export function evidenceOf(known: Explanation): Evidence[] {
  const { agent } = known;
  const clients = Object.keys(known.clients ?? {}).length;
  const there = known.attended ? "somebody who can answer is there" : "nobody who can answer is there";
  const found: [string, string | readonly string[] | undefined][] = [
    [known.suspectedComplete ? "Speaks for an end" : "Waits for", known.reasons],
    ["Agent", agent?.connected ? `there${agent.pid ? `, process ${agent.pid}` : ""}` : "not there"],
    ["Its memory", agent?.opened === "lost" ? "gone: it came back without it, and began the session anew" : undefined],
    ["Refused to bring it back by", agent?.refused],
    ["Permission requests", known.waitingFor?.join(", ")],
    ["Tool calls in flight", known.toolsInFlight?.join(", ")],
    ["In the queue", known.queued?.join(", ")],
    ["Queue held", known.queueHeld],
    ["In the background", known.background?.map((each) => `${each.kind ?? ""} ${each.id ?? ""}`.trim()).join(", ")],
    ["Our open requests", agent?.openRequests ? String(agent.openRequests) : undefined],
    ["Broken lines", tally(agent?.breaches)],
    ["Frames for nobody", tally(agent?.strays)],
    ["Clients", clients ? `${clients} attached, ${there}` : "none attached"],
    ["Last from the agent, newest first", agent?.lastReceived?.toReversed()],
    ["Last to the agent, newest first", agent?.lastSent?.toReversed()],
    ["Its last broken lines", agent?.brokenLines],
    ["Last words of the agent before", agent?.stderrTail?.split("\n")],
  ];
  return found.flatMap(([name, value]) => (value?.length ? [{ name, value }] : []));
}

function tally(counts: Readonly<Record<string, number>> | undefined): string {
  return Object.entries(counts ?? {})
    .map(([reason, count]) => `${count}× ${reason}`)
    .join(", ");
}
