"""Remote calls: framing, dispatch, stubs and transports."""
