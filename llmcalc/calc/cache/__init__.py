"""What a model keeps between tokens, per engine: one function per engine over the same mixers, each with its versions."""
