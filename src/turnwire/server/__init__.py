"""What faces clients: REST and SSE over one node. Routes translate; they decide nothing."""
