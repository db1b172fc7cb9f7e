"""Dead letters as the control server shows them: counted, read, and redriven in the background."""
