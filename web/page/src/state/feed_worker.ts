/** The worker that all tabs share: it has the reader of the stream, and nothing else. */

import { FeedReader } from "./feed_reader.js";
import type { ToReader } from "./feed_words.js";

const reader = new FeedReader();

addEventListener("connect", (event) => {
  const [port] = (event as MessageEvent).ports;
  if (!port) return;
  const hear = reader.join((words) => port.postMessage(words));
  port.onmessage = ({ data }: MessageEvent<ToReader>) => hear(data);
});
