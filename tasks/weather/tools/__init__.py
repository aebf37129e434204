"""What serves no table: rain composites of weather services, and what becomes of forecasts."""
