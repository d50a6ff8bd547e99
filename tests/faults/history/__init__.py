"""The history of a run: operations that clients recorded, and the rules that they must not break."""
