"""The admission program: answers reviews of configs that need more than the object itself. Nothing depends on it."""
