"""`auto`: what is descended in which order, for the last layer and for all of them. docs/method.md
derives both."""
