"""What a training depends on beside its weights: find it, save it, and put it back."""
