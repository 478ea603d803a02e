/** The agent's commands while a prompt that begins with `/` is typed: which fit, and the list to choose from. */

import type { AvailableCommand } from "@turnwire/client";

/** Those that the text may become; none once a command is followed by more. */
export function fitting(text: string, commands: readonly AvailableCommand[]): AvailableCommand[] {
  const typed = /^\/(\S*)$/.exec(text);
  if (!typed) return [];
  const wanted = (typed[1] ?? "").toLowerCase();
  const begins = commands.filter((each) => each.name.toLowerCase().startsWith(wanted));
  const contains = commands.filter((each) => !begins.includes(each) && each.name.toLowerCase().includes(wanted));
  return [...begins, ...contains];
}

/** The text with a command chosen: its arguments follow, if it has any. */
export function chosen(command: AvailableCommand): string {
  return command.input ? `/${command.name} ` : `/${command.name}`;
}

export const LIST_ID = "slash-commands";

export function optionId(at: number): string {
  return `${LIST_ID}-${at}`;
}

export function SlashCommands({
  commands,
  at,
  onChoose,
}: {
  readonly commands: readonly AvailableCommand[];
  /** The one that Enter chooses. */
  readonly at: number;
  readonly onChoose: (command: AvailableCommand) => void;
}) {
  return (
    <ul class="slash-commands" id={LIST_ID} role="listbox" aria-label="Commands of the agent">
      {commands.map((each, place) => (
        <li
          key={each.name}
          id={optionId(place)}
          role="option"
          aria-selected={place === at}
          // The field keeps the focus.
          onPointerDown={(event) => event.preventDefault()}
          onClick={() => onChoose(each)}
          ref={(element) => {
            if (place === at) element?.scrollIntoView({ block: "nearest" });
          }}
        >
          <strong class="mono">/{each.name}</strong>
          {each.input?.hint ? <span class="soft small"> {each.input.hint}</span> : null}
          <span class="soft small">{each.description}</span>
        </li>
      ))}
    </ul>
  );
}
