"""`fit`, the training loop, evaluation, and the comparison and the rehearsal of a resume."""
