"""Several models behind one port: loaded when they are asked for, unloaded when they are idle or memory is needed."""
