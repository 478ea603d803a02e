/** The worker with the reader of the stream: shared by all tabs, or for one tab alone. */

import { FeedReader } from "./feed_reader.js";
import type { ToReader } from "./feed_words.js";

const reader = new FeedReader();

function serve(port: Pick<MessagePort, "postMessage" | "onmessage">): void {
  const hear = reader.join((words) => port.postMessage(words));
  port.onmessage = ({ data }: MessageEvent<ToReader>) => hear(data);
}

if ("onconnect" in self) {
  addEventListener("connect", (event) => (event as MessageEvent).ports.forEach(serve));
} else {
  serve(self as unknown as MessagePort);
}
