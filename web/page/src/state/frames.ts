/** Work once per frame while the page is visible, and soon otherwise: a hidden page has no frames. */

export class PerFrame {
  #isDue = false;

  constructor(private readonly work: () => void) {}

  due(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    const run = () => {
      if (!this.#isDue) return;
      this.#isDue = false;
      this.work();
    };
    if (document.visibilityState === "visible") requestAnimationFrame(run);
    // A page that is hidden while it waits for a frame gets none.
    setTimeout(run, document.visibilityState === "visible" ? 100 : 0);
  }
}
