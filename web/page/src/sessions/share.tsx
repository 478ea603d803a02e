/** Share links of a session: create one in two clicks, list the active ones, revoke them. */

import { useSignal } from "@preact/signals";
import type { NewShare, SessionEntry, Share } from "@turnwire/client";
import { useEffect } from "preact/hooks";

import { ONLY_HERE, isLoopback } from "../frame/phone.js";
import { copy } from "../frame/copy.js";
import { Dialog } from "../frame/dialog.js";
import { Icon } from "../frame/icon.js";
import { keepText, keptText } from "../frame/kept.js";
import { moment } from "../frame/time.js";
import { wordsOf } from "../frame/toasts.js";
import type { Daemon } from "../state/daemon.js";
import { titleOf } from "./badge.js";

const HOUR_S = 3_600;
const LIFETIMES = [
  { words: "An hour", seconds: HOUR_S },
  { words: "A day", seconds: 24 * HOUR_S },
  { words: "A week", seconds: 7 * 24 * HOUR_S },
  { words: "30 days", seconds: 30 * 24 * HOUR_S },
];

export function ShareDialog({ daemon, entry }: { readonly daemon: Daemon; readonly entry: SessionEntry }) {
  const { client } = daemon;
  const { sessionId } = entry;
  const lifetime = useSignal(Number(keptText("share-for")) || 24 * HOUR_S);
  const made = useSignal<NewShare | undefined>(undefined);
  const shares = useSignal<readonly Share[]>([]);
  const problem = useSignal("");

  const attempt = async (act: () => Promise<void>) => {
    problem.value = "";
    try {
      await act();
    } catch (error) {
      problem.value = wordsOf(error);
    }
  };
  const list = () =>
    attempt(async () => {
      shares.value = await client.shares(sessionId);
    });
  useEffect(() => void list(), []);

  const make = () =>
    attempt(async () => {
      keepText("share-for", String(lifetime.value));
      made.value = await client.share(sessionId, { expiresInS: lifetime.value });
      await list();
    });
  const revoke = (share: Share) =>
    attempt(async () => {
      await client.unshare(sessionId, share.tokenId);
      if (made.value?.tokenId === share.tokenId) made.value = undefined;
      await list();
    });

  return (
    <Dialog title={`Share “${titleOf(entry)}”`} kind="share">
      <p class="soft">Anyone with the link can read the whole session, and nothing else.</p>
      {isLoopback && <p class="note small">{ONLY_HERE}</p>}
      {made.value ? (
        <div class="share-made">
          <label class="unseen" for="share-link">
            Link
          </label>
          <input id="share-link" class="field mono small" readOnly value={made.value.url} onFocus={(event) => event.currentTarget.select()} />
          <button type="button" class="button primary" data-first onClick={() => void copy(made.value!.url, "Link copied.")}>
            <Icon name="copy" />
            Copy
          </button>
          <p class="soft small">Valid until {moment(made.value.expiresAt)}. You won't see it again.</p>
        </div>
      ) : (
        <div class="share-new">
          <label>
            Valid for{" "}
            <select class="field" value={String(lifetime.value)} onChange={(event) => (lifetime.value = Number(event.currentTarget.value))}>
              {LIFETIMES.map((each) => (
                <option value={String(each.seconds)} key={each.seconds}>
                  {each.words}
                </option>
              ))}
            </select>
          </label>
          <button type="button" class="button primary" data-first onClick={make}>
            Create link
          </button>
        </div>
      )}
      {problem.value && (
        <p class="problem" role="alert">
          {problem.value}
        </p>
      )}
      {shares.value.length > 0 && (
        <>
          <h3 class="small soft">Active links</h3>
          <ul class="share-list">
            {shares.value.map((each) => (
              <li key={each.tokenId}>
                <span>
                  Created {moment(each.createdAt)}
                  <span class="soft small"> · until {moment(each.expiresAt)}</span>
                </span>
                <button type="button" class="button danger" onClick={() => revoke(each)}>
                  Revoke
                </button>
              </li>
            ))}
          </ul>
        </>
      )}
    </Dialog>
  );
}
