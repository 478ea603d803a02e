/** One content block of a message or a tool call. */

import type { ContentBlock, ResourceLink } from "@turnwire/client";
import { useEffect, useRef, useState } from "preact/hooks";

import { bytesOf } from "./ansi.js";
import { Folded } from "./fold.js";
import { Guard } from "./guard.js";
import { JsonView, Plain } from "./json.js";
import { Markdown } from "./markdown.js";

export interface ContentBlockViewProps {
  readonly block: ContentBlock;
  /** More chunks will follow. */
  readonly streaming?: boolean;
  /** Show tags as text: the user typed them. */
  readonly showsTags?: boolean;
}

export function ContentBlockView(props: ContentBlockViewProps) {
  return (
    <Guard value={props.block}>
      <Shown {...props} />
    </Guard>
  );
}

function Shown({ block, streaming = false, showsTags = false }: ContentBlockViewProps) {
  switch (block.type) {
    case "text":
      return <Markdown text={block.text} streaming={streaming} showsTags={showsTags} />;
    case "image":
      return <Picture data={block.data} mimeType={block.mimeType} name={block.uri ?? ""} />;
    case "audio":
      return <Sound data={block.data} mimeType={block.mimeType} />;
    case "resource_link":
      return <LinkedResource link={block} />;
    case "resource": {
      const { uri, text, blob, mimeType } = block.resource;
      return <Resource uri={uri} text={text ?? undefined} blob={blob ?? undefined} mimeType={mimeType ?? ""} />;
    }
    default:
      return <JsonView label={`Content of the kind ${block.type as string}`} value={block} />;
  }
}

interface PictureProps {
  /** Base64. */
  readonly data: string;
  readonly mimeType: string;
  readonly name: string;
}

function Picture({ data, mimeType, name }: PictureProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const source = dataUrl(mimeType.startsWith("image/") ? mimeType : "image/png", data);
  const words = name === "" ? "Image" : `Image ${fileName(name)}`;
  return (
    <>
      <button
        type="button"
        class="picture"
        aria-label={`${words}: show larger`}
        onClick={() => dialog.current?.showModal()}
      >
        <img src={source} alt={words} />
      </button>
      <dialog ref={dialog} class="picture-large" aria-label={words} onClick={() => dialog.current?.close()}>
        <img src={source} alt={words} />
        <button type="button" class="button">
          Close
        </button>
      </dialog>
    </>
  );
}

/** Played without a media element: the page's policy allows none to load anything. */
function Sound({ data, mimeType }: { readonly data: string; readonly mimeType: string }) {
  const [playing, setPlaying] = useState<AudioContext>();
  const [isReadable, setReadable] = useState(true);
  useEffect(() => () => void playing?.close(), [playing]);
  const play = async (): Promise<void> => {
    const context = new AudioContext();
    setPlaying(context);
    try {
      const source = context.createBufferSource();
      source.buffer = await context.decodeAudioData(bytesOf(data).buffer as ArrayBuffer);
      source.connect(context.destination);
      source.onended = () => setPlaying(undefined);
      source.start();
    } catch {
      setReadable(false);
      setPlaying(undefined);
    }
  };
  return (
    <p class="sound">
      {isReadable && (
        <button type="button" class="button" onClick={() => (playing ? setPlaying(undefined) : void play())}>
          {playing ? "Stop" : "Play the audio"}
        </button>
      )}
      <a href={dataUrl("application/octet-stream", data)} download={`audio.${mimeType.split("/")[1] ?? "wav"}`}>
        Save the audio
      </a>
    </p>
  );
}

function LinkedResource({ link }: { readonly link: ResourceLink }) {
  const words = link.title || link.name || fileName(link.uri);
  const size = typeof link.size === "number" ? bytesInWords(link.size) : "";
  return (
    <div class="resource">
      {/^https?:\/\//i.test(link.uri) ? (
        <a href={link.uri} target="_blank" rel="noopener noreferrer">
          {words}
        </a>
      ) : (
        <span class="address" title={link.uri}>
          {words}
        </span>
      )}
      {size !== "" && <span class="soft small">{size}</span>}
      {link.description && <span class="soft small">{link.description}</span>}
    </div>
  );
}

interface ResourceProps {
  readonly uri: string;
  readonly text: string | undefined;
  /** Base64. */
  readonly blob: string | undefined;
  readonly mimeType: string;
}

function Resource({ uri, text, blob, mimeType }: ResourceProps) {
  if (text !== undefined) {
    return (
      <Folded summary={<span title={uri}>{fileName(uri)}</span>} class="resource-text">
        {() => <Plain text={text} label={fileName(uri)} />}
      </Folded>
    );
  }
  if (blob === undefined) return <span class="address">{uri}</span>;
  if (mimeType.startsWith("image/")) return <Picture data={blob} mimeType={mimeType} name={uri} />;
  return (
    <a class="resource" href={dataUrl("application/octet-stream", blob)} download={fileName(uri)}>
      Save {fileName(uri)}
    </a>
  );
}

/** Both parts may contain anything, so remove characters that do not belong in a URL. */
function dataUrl(mimeType: string, base64: string): string {
  return `data:${mimeType.replace(/[^\w.+/-]/g, "")};base64,${base64.replace(/[^\w+/=-]/g, "")}`;
}

export function fileName(uri: string): string {
  const path = uri.replace(/[?#].*$/, "").replace(/[/\\]+$/, "");
  const name = path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1) || uri;
  try {
    return /^[a-z][\w+.-]*:/i.test(uri) ? decodeURIComponent(name) : name;
  } catch {
    return name;
  }
}

export function bytesInWords(count: number): string {
  const units = ["bytes", "kB", "MB", "GB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) {
    count /= 1000;
    unit++;
  }
  return `${unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)} ${units[unit]!}`;
}
