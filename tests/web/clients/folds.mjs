/**
 * Folds what it is told, a line of JSON at a time, with `@turnwire/client/view` as it was built: a view of a session,
 * or an entry of a list. Answers each line with what came of it.
 */

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { SessionView, emptyTranscript, foldEntry } = await import(pathToFileURL(process.argv[2]).href);

const plain = (terminals) =>
  Object.fromEntries(
    [...terminals].map(([name, each]) => [name, { ...each, output: Buffer.from(each.output).toString("base64") }]),
  );

function shown(view) {
  return {
    lastEventId: view.lastEventId,
    state: view.state,
    activePromptId: view.activePromptId,
    title: view.title,
    first: view.first,
    items: view.items,
    latest: view.latest,
    turns: [...view.turns.values()],
    terminals: plain(view.terminals),
    background: view.background,
    permissions: view.permissions,
    queue: view.queue.map((each) => each.promptId),
    queueHeld: view.queueHeld,
    answered: [...view.answered.keys()],
    children: [...view.children.values()].map(({ record, conversation }) => ({
      record,
      ...(conversation && {
        first: conversation.first,
        items: conversation.items,
        terminals: plain(conversation.terminals),
        background: conversation.background,
      }),
    })),
  };
}

/** Items as a reader keeps them who looks only at what is said to have changed; every old one is as it was. */
class Reader {
  places = new Map();
  frozen = new Map();

  look(view) {
    for (const place of view.drain()) this.#take(view, place);
  }

  begin(view) {
    view.items.forEach((_, index) => this.#take(view, view.first + index));
  }

  #take(view, place) {
    const item = view.items[place - view.first];
    this.places.set(place, item);
    this.frozen.set(item, JSON.stringify(item));
  }

  check(view) {
    for (const [item, before] of this.frozen) {
      if (JSON.stringify(item) !== before) throw new Error("an item was changed instead of replaced");
    }
    const read = [...this.places].sort(([one], [other]) => one - other).map(([, item]) => item);
    if (read.length !== view.items.length || read.some((each, index) => each !== view.items[index])) {
      throw new Error("a change of an item was not told");
    }
  }
}

const acts = {
  /** A page, then events, each of them twice and those of the page again; with pages from before in between. */
  view({ sessionId, page, events, older = [], children = [], snapshot }) {
    const view = new SessionView(page ?? emptyTranscript(sessionId));
    const reader = new Reader();
    reader.begin(view);
    const taken = [];
    const read = (after) => {
      for (const each of older) if (each.after === after) taken.push(view.prepend(each.page));
      for (const each of children) if (each.after === after) taken.push(view.takeChild(each.page));
      if (snapshot?.after === after) taken.push(view.takeSnapshot(snapshot.page));
    };
    read(view.lastEventId);
    for (const event of events) {
      const isNew = event.id > view.lastEventId;
      view.apply(event);
      view.apply(event);
      reader.look(view);
      if (isNew) read(event.id);
    }
    for (const event of events) view.apply(event);
    reader.look(view);
    reader.check(view);
    return { ...shown(view), taken };
  },

  entry({ entry, events }) {
    let folded = entry;
    for (const event of [...events, ...events]) folded = foldEntry(folded, event);
    return folded;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { act, ...given } = JSON.parse(line);
  let told;
  try {
    told = { is: acts[act](given) ?? null };
  } catch (error) {
    told = { error: String(error.stack) };
  }
  process.stdout.write(`${JSON.stringify(told)}\n`);
}
