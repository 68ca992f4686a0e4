"""The truth: data sets, victims made from them, and how close a reconstruction came. No attack may
import this."""
