"""The report reads run directories (`records`) alone and writes tables, figures and pages."""
