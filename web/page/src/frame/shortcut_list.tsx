/** The list of the keys that work now, and the switch for those without Ctrl or Cmd. */

import { Dialog, openDialog } from "./dialog.js";
import { isMac, keysInWords, singleKeys, working } from "./shortcuts.js";

export function openShortcutList(): void {
  openDialog(() => (
    <Dialog title="Keyboard shortcuts" kind="shortcuts">
      <table class="shortcut-table">
        <tbody>
          {working().map((each) => (
            <tr key={each.action}>
              <th scope="row">{each.words}</th>
              <td>
                <kbd>{keysInWords(each.keys, isMac.value)}</kbd>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <label class="check">
        <input
          type="checkbox"
          data-first
          checked={singleKeys.value === "on"}
          onChange={(event) => (singleKeys.value = event.currentTarget.checked ? "on" : "off")}
        />
        Keys without {isMac.value ? "⌘" : "Ctrl"} do something
      </label>
    </Dialog>
  ));
}
