"""Claims of the documents: their trainings and measurements, tables, figures and pages."""
