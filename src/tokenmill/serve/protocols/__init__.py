"""Other protocols, each translated to and from the one request and the one stream of parts."""
