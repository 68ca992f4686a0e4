"""The truth: data sets, victims trained on them, and the error of a reconstruction. No attack may
import this package."""
