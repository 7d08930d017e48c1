"""Programs, the forms of one forward: a spec, a class that runs, and a line of PROGRAMS in the registry each."""
