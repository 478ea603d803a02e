/** The list of the agent's commands while a prompt that begins with `/` is typed. */

import type { AvailableCommand } from "@turnwire/client";

/** Return the matching commands: none once arguments follow the command. */
export function fitting(text: string, commands: readonly AvailableCommand[]): AvailableCommand[] {
  const typed = /^\/(\S*)$/.exec(text);
  if (!typed) return [];
  const wanted = (typed[1] ?? "").toLowerCase();
  const begins = commands.filter((each) => each.name.toLowerCase().startsWith(wanted));
  const contains = commands.filter((each) => !begins.includes(each) && each.name.toLowerCase().includes(wanted));
  return [...begins, ...contains];
}

/** Return the text for a chosen command. */
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
  /** Index of the command that Enter chooses. */
  readonly at: number;
  readonly onChoose: (command: AvailableCommand) => void;
}) {
  return (
    <ul class="slash-commands" id={LIST_ID} role="listbox" aria-label="Agent commands">
      {commands.map((each, place) => (
        <li
          key={each.name}
          id={optionId(place)}
          role="option"
          aria-selected={place === at}
          // Keep the focus in the field.
          onPointerDown={(event) => event.preventDefault()}
          onClick={() => onChoose(each)}
          ref={(element) => {
            if (place === at) element?.scrollIntoView({ block: "nearest" });
          }}
        >
          <strong class="mono">/{each.name}</strong>
          <span class="small">{each.description}</span>
          {each.input?.hint ? <span class="soft small"> {each.input.hint}</span> : null}
        </li>
      ))}
    </ul>
  );
}
