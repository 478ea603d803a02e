/**
 * An error boundary for content of agents, which may be anything. Content that cannot be rendered is shown as raw data.
 */

import { Component, type ComponentChildren } from "preact";

import { JsonView } from "./json.js";

interface GuardProps {
  /** The content. */
  readonly value: unknown;
  readonly children: ComponentChildren;
}

export class Guard extends Component<GuardProps, { readonly failed?: unknown }> {
  override state: { readonly failed?: unknown } = {};

  override componentDidCatch(): void {
    this.setState({ failed: this.props.value });
  }

  override render() {
    // Another value is another try.
    const hasFailed = "failed" in this.state && this.state.failed === this.props.value;
    return hasFailed ? <JsonView label="This cannot be shown" value={this.props.value} /> : this.props.children;
  }
}
