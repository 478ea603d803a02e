/**
 * Beside the words that the daemon is not reachable: sees whether it is, and then loads the page. If this changes it
 * gets another name, because browsers keep it for a year.
 */

const AGAIN_MS = 2_000;

async function look() {
  try {
    if (document.visibilityState === "visible" && (await fetch("health")).ok) location.reload();
  } catch {
    // Not yet.
  }
}

setInterval(look, AGAIN_MS);
document.addEventListener("visibilitychange", look);
addEventListener("online", look);
