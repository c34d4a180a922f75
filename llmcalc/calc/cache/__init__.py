"""What a model keeps between tokens: one function per engine over the same mixers, each with its versions."""
