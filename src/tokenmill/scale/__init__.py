"""More than one engine: replicas behind one address, whose streams outlive them."""
