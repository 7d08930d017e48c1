"""The layers before the routes: sockets, keys, limits, logs, and the forms of errors."""
