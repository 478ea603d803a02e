/** The dialog with the available shortcuts and the switch for single-key shortcuts. */

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
        Single-key shortcuts
      </label>
    </Dialog>
  ));
}
