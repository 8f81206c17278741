"""The plugin's tests send Ctrl-C, which must arrive."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background jobs ignore Ctrl-C, and what they start inherits that
